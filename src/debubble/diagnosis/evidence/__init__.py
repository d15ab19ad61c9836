"""What shows in measured windows that a cause has a culprit: nothing here is blamed without it."""
