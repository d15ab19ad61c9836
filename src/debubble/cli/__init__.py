"""The command line: options of the verbs, by what they are about, and where answers go; the only room that prints."""
