"""Schedules that are searched: they need costs and a memory cap beside the shape."""
