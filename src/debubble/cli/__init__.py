"""The command line, one short file a verb: the only room that prints."""
