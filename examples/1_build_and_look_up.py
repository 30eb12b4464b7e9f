"""A set of semantic IDs as a table: members, the way back to items, the file."""

import tempfile
from pathlib import Path

import numpy as np

import maskwright as mw

catalogue = np.array([[5, 1, 7], [5, 1, 2], [0, 3, 3], [5, 1, 7]])  # items 0 and 3 share an ID
table = mw.compile_sids(catalogue, vocab_size=8)
print(table)

print("in the set:", table.contains([[5, 1, 2], [5, 1, 3]]))
print("items with ID (5, 1, 7):", table.input_rows(table.walk([[5, 1, 7]]))[0])

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "catalogue.safetensors"
    table.save(path)
    print("loaded:", mw.TransitionTable.load(path))
