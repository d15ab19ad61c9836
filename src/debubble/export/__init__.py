"""Timelines and schedules in formats of other tools."""
