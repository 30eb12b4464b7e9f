"""What new processes do, one program for each kind of constraint and engine.

A program reads the tokens of a vocabulary and stops the processor's time of its process by stages.
"""

from __future__ import annotations

BEGIN = """
import json, pickle, resource, sys
tokens, special, eos = pickle.load(open(sys.argv[1], "rb"))
import hashlib
taken, last = {}, [resource.getrusage(resource.RUSAGE_SELF)]
digest = hashlib.sha256()
def stop(stage):
    now = resource.getrusage(resource.RUSAGE_SELF)
    taken[stage] = now.ru_utime + now.ru_stime - last[0].ru_utime - last[0].ru_stime
    last[0] = now
"""

END = """
print(json.dumps({"taken": taken, "masks": digest.hexdigest(), "numba": "numba" in sys.modules}))
"""

CITY = """
CITY = {"$defs": {"City": {"additionalProperties": False, "type": "object", "required": ["name", "founded", "twins"],
    "properties": {"name": {"maxLength": 40, "type": "string"},
        "founded": {"anyOf": [{"maximum": 2100, "minimum": -5000, "type": "integer"}, {"type": "null"}]},
        "twins": {"items": {"$ref": "#/$defs/City"}, "maxItems": 3, "type": "array"}}}}, "$ref": "#/$defs/City"}
TEXT = '{"name": "Ulm", "founded": 1181, "twins": [{"name": "York", "founded": null, "twins": []}]}'
"""

_OURS = """
import numpy as np
stop("numpy")
import maskwright as mw
stop("import")
vocabulary = mw.Vocabulary.from_bytes(tokens, eos=eos, special=special)
stop("vocabulary")
"""

_WALK = """
matcher = mw.Matcher(table, vocabulary)
digest.update(matcher.mask())
stop("first mask")
for token in vocabulary.encode(text):
    assert matcher.advance(token)
    digest.update(matcher.mask())
stop("a text")
"""

OURS = {
    "regex": _OURS
    + 'text = "2024-01-02"\ntable = mw.compile_regex("[0-9]{4}-[0-9]{2}-[0-9]{2}|unknown", vocabulary)\n'
    + _WALK,
    "JSON": CITY + _OURS + "text = TEXT\ntable = mw.compile_json_schema(CITY, vocabulary)\n" + _WALK,
    "grammar": _OURS
    + """
text = "2*(3+4)"
table = mw.compile_grammar('''
start: product (("+" | "-") product)*
product: atom (("*" | "/") atom)*
atom: /[0-9]+/ | "-" atom | "(" start ")"
''', vocabulary)
"""
    + _WALK,
    "SIDs, torch": """
import torch
import numpy as np
stop("torch")
import maskwright as mw
stop("import")
from maskwright.runtime import torch_ops
from maskwright.runtime.decode import beam_search
sids = np.random.default_rng(0).integers(0, 2048, (100_000, 8))
table = mw.compile_sids(sids, vocab_size=2048)
device = torch_ops.to_device(table)
random = torch.Generator().manual_seed(0)
found = beam_search(
    lambda tokens, cache, t: (torch.randn(len(tokens), 2048, generator=random), cache), None, device, ops=torch_ops,
    batch=2, beams=10, max_tokens=8,
)
digest.update(found.tokens.numpy().tobytes())
stop("first search")
""",
}
"""What maskwright does for each kind of constraint."""

PEERS = {
    "llguidance": CITY
    + """
import numpy as np
stop("numpy")
import llguidance, llguidance.numpy
stop("import")
class Wrapped:
    eos_token_id, bos_token_id, special_token_ids = eos, None, special
    tokens = [token or b"\\xff<%d>" % i for i, token in enumerate(tokens)]
    def __call__(self, text): return list(text.encode() if isinstance(text, str) else text)
tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Wrapped()))
stop("vocabulary")
matcher = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_json_schema(json.dumps(CITY)))
assert not matcher.is_error()
bits = llguidance.numpy.allocate_token_bitmask(1, tokenizer.vocab_size)
llguidance.numpy.fill_next_token_bitmask(matcher, bits, 0)
stop("first mask")
""",
    "xgrammar": CITY
    + """
import numpy as np
stop("numpy")
import xgrammar
stop("import")
info = xgrammar.TokenizerInfo([token or b"<special_%d>" % i for i, token in enumerate(tokens)],
    vocab_type=xgrammar.VocabType.RAW, vocab_size=len(tokens), stop_token_ids=[eos])
stop("vocabulary")
compiler = xgrammar.GrammarCompiler(info, max_threads=1)
matcher = xgrammar.GrammarMatcher(compiler.compile_json_schema(json.dumps(CITY)))
matcher.fill_next_token_bitmask(xgrammar.allocate_token_bitmask(1, len(tokens)))
stop("first mask")
""",
}
"""What other engines do for the same JSON Schema."""
