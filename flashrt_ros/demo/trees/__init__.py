"""Behaviour trees at work: the demonstration's arm with a magnet, a block and obstacles."""
