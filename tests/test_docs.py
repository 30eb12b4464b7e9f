"""Examples in docstrings hold. What pages and examples show is in `tests/docs`."""

from __future__ import annotations

import doctest

import pytest

from maskwright.cli.main import drawing
from maskwright.compile import sequences, text
from maskwright.compile.grammar import build as grammars
from maskwright.compile.json_schema import members, source
from maskwright.compile.json_schema import request as schema
from maskwright.compile.tags import build as tags
from maskwright.runtime.host import matcher
from maskwright.vocabulary import vocabulary


@pytest.mark.parametrize(
    "module",
    [drawing, grammars, matcher, members, schema, sequences, source, tags, text, vocabulary],
    ids=lambda m: m.__name__,
)
def test_docstring_examples_hold(module):
    result = doctest.testmod(module)
    assert result.attempted
    assert result.failed == 0
