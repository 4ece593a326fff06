"""One module per published number."""
