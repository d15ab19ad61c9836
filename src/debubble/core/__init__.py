"""Nouns of a pipeline (op, schedule, program, costs, timeline) and the verbs that need nothing else."""
