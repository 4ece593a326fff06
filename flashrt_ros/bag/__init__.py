"""Recordings: tolerant reading and playing, without ROS."""
