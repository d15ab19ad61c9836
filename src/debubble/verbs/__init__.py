"""Verbs: one file each, the function that the command line and Python users both call; each returns a ``Result``.

Keyword names are the long options with underscores, and a value may be what one would type: ``transfer="35us"``. The
package exports the verbs (``debubble.show``); ``cli/`` declares options and calls them there.
"""
