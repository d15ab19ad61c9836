"""The search for a schedule: list scheduling, local search and a solver, on the bounds of core."""
