"""What a policy would have done on recordings: open loop, from any moment, without ROS."""
