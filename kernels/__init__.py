"""Functions compiled to machine code, and the cache that keeps it."""
