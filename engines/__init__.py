"""maskwright inside serving engines: plugins, and modules in the shape of other engines' own."""
