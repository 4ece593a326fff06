"""Diffusion Policy: a chunk of actions is denoised, given the last few observations."""
