"""Where buffers live and how plans are replayed there."""
