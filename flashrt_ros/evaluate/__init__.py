"""What a policy would have done: recordings and data sets, driven step by step, without ROS."""
