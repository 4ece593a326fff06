"""Exported programs (.pt2) as policies: read without unpickling, run over named buffers."""
