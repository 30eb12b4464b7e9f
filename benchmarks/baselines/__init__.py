"""Published ways to hold beam search to a set of semantic IDs, written from their papers.

Each module has `build(sids, vocab_size, ...)`, which makes the index on the host, and `to_torch(built,
device)` and `to_jax(built)`, which make a method for `harness.decode_torch` and `harness.decode_jax` of it.
"""

from types import ModuleType

from . import dense_csr, dict_trie, hash_bitmap, prefix_verification

BASELINES: dict[str, ModuleType] = {
    "dict_trie": dict_trie,
    "hash_bitmap": hash_bitmap,
    "prefix_verification": prefix_verification,
    "dense_csr": dense_csr,
}

__all__ = ["BASELINES", "dense_csr", "dict_trie", "hash_bitmap", "prefix_verification"]
