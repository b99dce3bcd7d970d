"""Problems of the papers, and twenty-three on boxes to compare methods on."""
