"""The lifecycle node and its threads."""
