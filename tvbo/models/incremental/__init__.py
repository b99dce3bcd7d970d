"""Parts of :class:`tvbo.models.IncrementalGP`, whose Cholesky factor grows row by row."""
