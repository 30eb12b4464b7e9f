"""Constraints that are compiled state by state, while they are read."""
