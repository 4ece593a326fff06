"""Checkpoints of LeRobot, read without LeRobot, and the families that run from them."""
