"""Problems of the papers."""
