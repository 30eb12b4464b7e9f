"""Published engines that constrain decoding, and maskwright, driven alike.

An engine is made once for a tokenizer. `compile`, which each suite adds, takes a pattern, a schema or a grammar;
`session` starts one sequence over what it gave. A session's `mask` computes which tokens may come next, `commit` takes
one. All are the engine's own calls with nothing around them, so that they can be timed, and every engine works on one
thread.
"""

from .engines import Engine as Engine
from .engines import Llguidance as Llguidance
from .engines import Maskwright as Maskwright
from .engines import Outlines as Outlines
from .engines import Xgrammar as Xgrammar
from .engines import versions as versions
from .sessions import FaultError as FaultError
from .sessions import Session as Session
from .sessions import accepts as accepts
from .sessions import allows as allows
from .sessions import no_fault as no_fault
from .tokenizers import Tokenizer as Tokenizer
from .tokenizers import tekken as tekken
from .workers import Process as Process
