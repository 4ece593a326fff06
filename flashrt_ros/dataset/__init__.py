"""Data sets of LeRobot (format 3): read through their own files, without LeRobot."""
