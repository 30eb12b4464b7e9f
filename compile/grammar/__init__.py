"""Grammars: their notations, and how what they derive is read."""
