"""Suites: each names in its first lines the claims that it checks."""
