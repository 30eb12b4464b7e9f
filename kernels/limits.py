"""Limits that vocabularies and tables share."""

MOST_TOKENS = 2**31 - 3
"""The largest vocabulary: tokens and two numbers more fit into 32 bits on every backend."""
