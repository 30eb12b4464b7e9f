"""maskwright inside other libraries: `transformers`, and `tree_beams`, which needs its models and caches."""
