"""The plugin of vLLM."""
