"""Byte machines with calls, read as they are: tokens byte by byte, masks by walking the trie of all tokens."""
