"""Automata meet a vocabulary: bytes become tokens."""
