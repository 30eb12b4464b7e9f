"""Schemas as formulas that are derived by what a text writes: the states of a lazy machine."""
