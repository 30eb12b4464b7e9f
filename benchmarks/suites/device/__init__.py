"""Steps on an accelerator: checked against numpy, timed, and set beside the bytes that must move."""
