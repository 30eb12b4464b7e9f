"""Automata over bytes and tries over tokens, their algebra, and budgets for making them."""
