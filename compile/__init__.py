"""From a source and, for text, a vocabulary to a TransitionTable."""
