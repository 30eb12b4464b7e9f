"""One sequence, or one batch of masks, on the host."""
