"""The grammar backend of SGLang."""
