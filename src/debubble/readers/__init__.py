"""File formats of measurements and schedules, one a file, told apart by what they hold."""
