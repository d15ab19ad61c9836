"""File formats, one a file, both directions in it."""
