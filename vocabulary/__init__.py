"""Tokens as bytes, the trie of tokens, and tokenizers of other libraries."""
