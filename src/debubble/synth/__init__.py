"""Schedules that need costs, and the bounds that none can beat."""
