"""Compiled constraints kept in memory and on disk."""
