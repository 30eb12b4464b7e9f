"""JSON Schema, down to a skeleton of automata over members and items."""
