"""Policy objects of other libraries, with all that they would remember as named state."""
