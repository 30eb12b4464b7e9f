"""Triton kernels for CUDA devices. Imported only where Triton is installed and a kernel is to run."""
