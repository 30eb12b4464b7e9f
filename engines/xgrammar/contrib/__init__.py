"""XGrammar's classes for other packages."""

from . import hf as hf
