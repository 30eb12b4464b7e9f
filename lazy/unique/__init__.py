"""Arrays of distinct items and objects of distinct keys: what a text has written, beside its state."""
