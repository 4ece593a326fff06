"""A simulated arm behind ROS topics, and an experiment on it."""
