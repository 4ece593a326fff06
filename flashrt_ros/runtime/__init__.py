"""Graph-bound execution: buffers, plans, sessions and capsules, without ROS."""
