"""Tables at work: the same operations in numpy, PyTorch and JAX, and one sequence on the host."""
