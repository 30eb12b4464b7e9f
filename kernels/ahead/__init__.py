"""Compiling all kernels ahead, into one library that needs neither numba nor a certain release of Python."""
