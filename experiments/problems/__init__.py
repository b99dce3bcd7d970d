"""Problems of the papers, and fifteen on boxes to compare methods on."""
