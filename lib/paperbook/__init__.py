"""Papers That Run: the shared library of an executable research book."""
