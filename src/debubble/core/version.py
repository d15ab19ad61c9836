"""The version of the package, in the one place that the build, the command line and every JSON object read."""

__version__ = "0.1.0"
