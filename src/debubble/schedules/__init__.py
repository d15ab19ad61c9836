"""Published schedules, one a file: each takes a shape and returns the order of its ops."""
