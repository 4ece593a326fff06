"""One module per published figure, each with its floor measured in the same run."""
