"""Cold starts: what a new process spends before its first mask."""
