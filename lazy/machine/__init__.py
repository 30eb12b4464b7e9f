"""Machines of bytes whose states are made when a text reaches them."""
