"""Constrained decoding: compile what a model may write into one flat table, apply it to logits."""

from __future__ import annotations

from .automata.budget import Budget
from .compile.cache.cache import Cache
from .compile.catalogue import Catalogue
from .compile.grammar.build import compile_grammar
from .compile.json_schema.request import compile_json_schema
from .compile.live_catalogue import LiveCatalogue
from .compile.sequences import compile_sequences, compile_sids, sort_sids
from .compile.shards.build import build_shards
from .compile.shards.merge import merge_shards
from .compile.tags.build import compile_structural_tag
from .compile.tags.tagged_text import SpecialToken, Tag, TaggedText
from .compile.text import compile_choices, compile_regex
from .errors import (
    ArenaError,
    BudgetError,
    ConstraintError,
    DataError,
    GrammarError,
    KernelError,
    MaskwrightError,
    MissingDependencyError,
    NoTableError,
    ProcessError,
    RegexError,
    SchemaError,
    TableError,
    TableFileError,
    Unenforced,
    UnenforcedWarning,
    VocabularyMismatchError,
)
from .first_use import warm
from .lazy.lazy_table import LazyTable
from .runtime.arena.arena import Arena
from .runtime.arena.capacity import Capacity
from .runtime.host.matcher import Matcher
from .table.files_filter import FilesFilter
from .table.live_sids import LiveSids
from .table.members import sample_members
from .table.sharded_files import ShardedFiles
from .table.sharded_matrix import ShardedMatrix
from .table.shards import Manifest
from .table.sid_filter import SidFilter, filter_sids
from .table.snapshot import LiveFilter, Snapshot
from .table.sorted_matrix import SortedMatrix
from .table.transition_table import TransitionTable
from .texts import generate, logits_processor
from .vocabulary.vocabulary import Vocabulary

__version__ = "0.1.0"

__all__ = [
    "Arena",
    "ArenaError",
    "Budget",
    "BudgetError",
    "Cache",
    "Capacity",
    "Catalogue",
    "ConstraintError",
    "DataError",
    "FilesFilter",
    "GrammarError",
    "KernelError",
    "LazyTable",
    "LiveCatalogue",
    "LiveFilter",
    "LiveSids",
    "Manifest",
    "MaskwrightError",
    "Matcher",
    "MissingDependencyError",
    "NoTableError",
    "ProcessError",
    "RegexError",
    "SchemaError",
    "ShardedFiles",
    "ShardedMatrix",
    "SidFilter",
    "Snapshot",
    "SortedMatrix",
    "SpecialToken",
    "TableError",
    "TableFileError",
    "Tag",
    "TaggedText",
    "TransitionTable",
    "Unenforced",
    "UnenforcedWarning",
    "Vocabulary",
    "VocabularyMismatchError",
    "build_shards",
    "compile_choices",
    "compile_grammar",
    "compile_json_schema",
    "compile_regex",
    "compile_sequences",
    "compile_sids",
    "compile_structural_tag",
    "filter_sids",
    "generate",
    "logits_processor",
    "merge_shards",
    "sample_members",
    "sort_sids",
    "warm",
]
