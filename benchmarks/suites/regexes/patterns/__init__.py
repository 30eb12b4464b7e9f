r"""Regular expressions as people write them, each with texts that match it whole and texts that do not.

Patterns are in the syntax of Python's `re` and match whole texts; so `\d`, `\w` and `\s` mean Unicode classes. The
truth of every text is what `re.fullmatch` says. A pattern with `\p{...}`, which `re` lacks, is judged by the `regex`
package; two on which either would backtrack for ages are judged by a few lines of Python, which tests hold to `re` at
small sizes. `check` holds the texts written here to that truth.

Groups, and the files that hold them:

    values.py   dates, network, numbers, identifiers
    texts.py    code, logs, text, multilingual, choices
                    both are what a decoder is asked for every day
    hard.py     hard
                    look-around, word boundaries, properties, case folding, large counted repetitions: regular, yet
                    often refused or slow
                irregular
                    a group referred to again: no automaton accepts these, so refusing them is right
"""

from .hard import HARD
from .pattern import Pattern as Pattern
from .pattern import check as check
from .pattern import mutations as mutations
from .texts import TEXTS
from .values import VALUES

PATTERNS: tuple[Pattern, ...] = (*VALUES, *TEXTS, *HARD)
