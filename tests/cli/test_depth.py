"""Constraints of any depth on the command line: a right answer, or a short error that names the limit."""

from __future__ import annotations

import ast
import contextlib
import re
import subprocess
import sys
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import maskwright as mw
from maskwright.cli.main import main
from maskwright.depth import MOST_RULES
from tests.strategies import deep_sources as deep
from tests.strategies import tokenizer_zoo as zoo

SECOND = 1.0  # of the processor, for an error
MOST = 600  # characters of an error
URI = "https://example.org/a"
BYTES = mw.Vocabulary.from_bytes([b"", *(bytes([b]) for b in range(256))], eos=0)

KINDS: dict[str, tuple[str, dict[str, deep.Source]]] = {  # of commands, with the ending of a file
    "json-schema": (".json", deep.SCHEMAS),
    "tags": (".json", deep.TAGS),
    "regex": ("", deep.PATTERNS),
    **{f"grammar {syntax}": (f".{syntax}", found) for syntax, found in deep.GRAMMARS.items()},
}
CASES = [(kind, name) for kind, (_, sources) in KINDS.items() for name in sources]
MALFORMED = {("tags", "lists"), ("regex", "stars"), *((kind, "never closed") for kind in KINDS)}
WIDE = {"rules", "rules in brackets", "$ref in properties"}  # a chain of definitions, of which each is flat
FLAT = {("grammar gbnf", "stars")}  # of any length
NEVER = {("tags", "triggered"), ("grammar gbnf", "counts")}  # another rule than that of depth forbids these at ten
LIMITS = re.compile(r"more than ([\d,]+)")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    zoo.byte_level_bpe()[0].save(str(path))
    return path


@lru_cache(maxsize=2)
def in_python(kind: str, source: str, of_tokenizer: bool) -> Any:
    """Return the whole table that a command should make: for the tokenizer, or for single bytes."""
    vocabulary = zoo.byte_level_bpe()[1] if of_tokenizer else BYTES
    if kind == "json-schema":
        return mw.compile_json_schema(source, vocabulary, lazy=False).to_table()
    if kind == "tags":
        return mw.compile_structural_tag(source, vocabulary).to_table()
    if kind == "regex":
        return mw.compile_regex(source, vocabulary).to_table()
    return mw.compile_grammar(source, vocabulary, syntax=kind.split()[1]).to_table()


def is_answered(kind: str, name: str, levels: int) -> bool:
    """Return whether a source this deep must compile: what must not is beyond a limit, or malformed at any depth."""
    if (kind, name) in MALFORMED or levels > 10_000:
        return (kind, name) in FLAT
    if name in WIDE:
        return levels <= MOST_RULES or not name.startswith("rules")
    return (kind, name) in FLAT or (levels == 10 and (kind, name) not in NEVER)


def wrong_error(kind: str, name: str, levels: int, output: str, seconds: float) -> str:
    """Return what is wrong with the output of a command that failed, "" if nothing is."""
    lines = output.splitlines()
    if not lines or not lines[0].startswith("Error: ") or len(lines) > 3 or len(output) > MOST:
        return f"{len(lines)} lines, {len(output)} characters: {output[:80]}"
    if levels >= 10_000 and (kind, name) not in MALFORMED and not LIMITS.search(lines[0]):
        return f"names no limit: {lines[0]}"
    return f"{seconds:.2f} s: {output}" if levels >= 10_000 and seconds > SECOND else ""


@pytest.mark.long
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_every_command_answers_any_depth(kind: str, name: str, tokenizer: Path, tmp_path: Path) -> None:
    ending, sources = KINDS[kind]
    command, output, around = kind.split()[0], tmp_path / "out", tmp_path / "around.json"
    around.write_text(f'{{"$ref": "{URI}"}}')
    written = ["--tokenizer", str(tokenizer), "--eos", "0", "-o", str(output)]
    wrong = []
    for levels in deep.LEVELS:
        source = sources[name](levels)
        given = str(tmp_path / f"source{ending}")
        if command == "regex":
            given = source
        else:
            Path(given).write_text(source)
        calls = [["compile", command, given, *written]]
        if command == "json-schema":
            calls.append(["compile", command, str(around), "--document", URI, given, *written])
        if levels <= 10_000:  # the same readers read them
            calls.append(["sample", command, given, "-n", "1"])
            if command in ("grammar", "tags"):
                calls.append(["inspect", command, given])
            if command == "regex":
                calls.append(["show", command, given, "--max-states", "2000", "-o", str(tmp_path / "out.dot")])
        for call in calls:
            output.unlink(missing_ok=True)
            began = time.process_time()
            done = CliRunner().invoke(main, call)
            seconds, why = time.process_time() - began, ""
            if done.exception is not None and not isinstance(done.exception, SystemExit):
                why = repr(done.exception)[:80]
            elif done.exit_code == 0:
                if levels > 300 and not is_answered(kind, name, levels):
                    why = f"answered: {done.output[:80]}"
                elif call[0] == "compile":
                    table = mw.TransitionTable.load(output)
                    expected = in_python(kind, source, True)
                    if (table.num_states, table.num_edges) != (expected.num_states, expected.num_edges):
                        why = f"another table: {table}"
                elif call[0] == "sample" and not is_member(kind, source, done.stdout):
                    why = f"no member: {done.output[:80]}"
            elif is_answered(kind, name, levels) and "--max-bytes" not in done.output:
                why = done.output[:80]
            else:
                why = wrong_error(kind, name, levels, done.output, seconds)
            if why:
                wrong.append((call[0], levels, why))
    assert not wrong


def is_member(kind: str, source: str, printed: str) -> bool:
    """Return whether the one line that was printed is a text of a constraint, or Python's string of one."""
    line = printed.splitlines()[0]
    texts = [line]
    if line[0] in "'\"":
        with contextlib.suppress(SyntaxError, ValueError):
            texts.append(ast.literal_eval(line))
    table = in_python(kind, source, False)
    return any(table.accepts([*BYTES.encode(text.encode()), 0]) for text in texts if isinstance(text, str))


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "source", "limit"),
    [
        (["compile", "json-schema", "-"], deep.SCHEMAS["required"](1_000_000), 640),
        (["compile", "json-schema", "-"], deep.SCHEMAS["never closed"](1_000_000), 640),
        (["sample", "json-schema", "-"], deep.SCHEMAS["not"](1_000_000), 640),
        (["compile", "tags", "-"], deep.TAGS["tag"](1_000_000), 640),
        (["compile", "grammar", "-", "--syntax", "ebnf"], deep.GRAMMARS["ebnf"]["groups"](1_000_000), 640),
        (["inspect", "grammar", "-", "--syntax", "lark"], deep.GRAMMARS["lark"]["repeats"](1_000_000), 100),
        (["sample", "regex", deep.PATTERNS["groups"](60_000)], "", 250),  # Linux takes 128 KiB in one argument
    ],
    ids=lambda given: " ".join(given[:2]) if isinstance(given, list) else None,
)
def test_the_program_ends_with_one_line_that_names_the_limit(
    arguments: list[str], source: str, limit: int, tokenizer: Path, tmp_path: Path
) -> None:
    if arguments[0] == "compile":
        arguments = [*arguments, "--tokenizer", str(tokenizer), "-o", str(tmp_path / "out")]
    command = [sys.executable, "-m", "maskwright.cli.main", *arguments]
    done = subprocess.run(command, input=source, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout == ""
    message, *excerpt = done.stderr.splitlines()
    assert message.startswith("Error: ")
    assert f"more than {limit} deep" in message
    assert len(excerpt) in (0, 2)
    assert len(done.stderr) <= MOST
    assert not (tmp_path / "out").exists()
