"""Kernels of the PyTorch operations."""
