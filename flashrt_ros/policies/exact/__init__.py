"""The exact arithmetic in fewer kernels, with the same bits: what surrounds products."""
