"""From measured timelines to causes, what-ifs and verdicts."""
