"""Parts of :class:`tvbo.models.StreamingGP`."""
