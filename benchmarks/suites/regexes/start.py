"""Times of a new process: importing, the vocabulary, the first pattern."""

from __future__ import annotations

import pickle
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
from rich.progress import track

from ...peers import tekken
from .engines import ENGINES
from .patterns import PATTERNS
from .plan import OURS, Plan, Record, console

_BEGIN = (
    "import pickle, sys, time\ntokens, special, eos, pattern = pickle.load(open(sys.argv[1], 'rb'))\n"
    "t = [time.perf_counter()]"
)
_NOW = "t.append(time.perf_counter())"
FIRST = {
    OURS: [
        "import maskwright as mw",
        "vocab = mw.Vocabulary.from_bytes(tokens, eos=eos, special=special)",
        "table = mw.compile_regex(pattern, vocab)\nmw.Matcher(table).mask()",
    ],
    "outlines-core": [
        "import outlines_core, collections",
        "ids = collections.defaultdict(list)\nfor i, token in enumerate(tokens):\n    if token: ids[token].append(i)\n"
        "vocab = outlines_core.Vocabulary(eos, dict(ids))",
        "outlines_core.Index(pattern, vocab)",
    ],
    "xgrammar": [
        "import xgrammar as x",
        "info = x.TokenizerInfo([token or b'<s_%d>' % i for i, token in enumerate(tokens)], "
        "vocab_type=x.VocabType.RAW, vocab_size=len(tokens), stop_token_ids=[eos])",
        "m = x.GrammarMatcher(x.GrammarCompiler(info, max_threads=1).compile_regex(pattern))\n"
        "m.fill_next_token_bitmask(x.allocate_token_bitmask(1, len(tokens)))",
    ],
    "llguidance": [
        "import llguidance, llguidance.numpy",
        "class T:\n    eos_token_id, bos_token_id, special_token_ids = eos, None, special\n"
        "    tokens = [token or b'\\xff<%d>' % i for i, token in enumerate(tokens)]\n"
        "    def __call__(self, text): return list(text.encode() if isinstance(text, str) else text)\n"
        "tok = llguidance.LLTokenizer(llguidance.TokenizerWrapper(T()))",
        "m = llguidance.LLMatcher(tok, llguidance.LLMatcher.grammar_from_regex(pattern))\n"
        "llguidance.numpy.fill_next_token_bitmask(m, llguidance.numpy.allocate_token_bitmask(1, tok.vocab_size), 0)",
    ],
}  # what a program does first: import, vocabulary, compile and mask


def first(plan: Plan, earlier: Record) -> Record:
    """Seconds in a new process: importing, making the vocabulary, the first pattern to its first mask."""
    tokenizer = tekken()
    pattern = next(pattern for pattern in PATTERNS if pattern.name == "e-mail")
    names = [name for name in ENGINES if name in FIRST]
    stages: dict[str, list[list[float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokens.pickle"
        path.write_bytes(pickle.dumps((tokenizer.tokens, tokenizer.special, tokenizer.eos, pattern.pattern)))
        # the first run is not counted: it fills caches
        for run in track(range(1 + plan.rounds(9)), "first", console=console):
            for name in names:
                code = "\n".join([_BEGIN, *(f"{stage}\n{_NOW}" for stage in FIRST[name]), "print(*t)"])
                out = subprocess.run(
                    [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
                )
                if run:
                    stages[name].append(np.diff([float(x) for x in out.stdout.split()]).tolist())
    records = []
    for name, runs in stages.items():
        imported, vocabulary, compiled = np.array(runs).T
        without, total = imported + compiled, imported + vocabulary + compiled
        records.append(
            {
                "engine": name,
                "runs": len(runs),
                "import_s": np.median(imported),
                "vocabulary_s": np.median(vocabulary),
                "compile_s": np.median(compiled),
                "import_and_compile_s": np.median(without),
                "import_and_compile_worst_s": without.max(),
                "all_s": np.median(total),
                "all_worst_s": total.max(),
            }
        )
    return {"pattern": pattern.name, "records": records}
