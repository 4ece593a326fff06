"""Triton kernels in the place of ``policies.hybrid.ops``; imported on CUDA only."""
