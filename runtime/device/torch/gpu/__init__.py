"""Triton kernels of the PyTorch operations, for tensors on a CUDA device: imported only where they run."""
