"""Compiled tables: their arrays, checks, file, and walks on the host."""
