"""Arrays of distinct items: what a text has written, beside the state of the machine that reads it."""
