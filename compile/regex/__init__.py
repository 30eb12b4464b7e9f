"""Patterns: their syntax, their characters, and the DFA of what they match."""
