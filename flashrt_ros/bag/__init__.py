"""Recorded bags, read without ROS."""
