"""Structural tags: free text around tagged values."""
