"""Grammars read as they are: what may come next after a text, for all derivations at once."""
