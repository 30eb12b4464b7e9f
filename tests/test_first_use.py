"""What first use would make is made ahead."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

import maskwright as mw
from maskwright import first_use
from maskwright.cli.main import main
from maskwright.kernels import compiled

BYTES = [b"", *(bytes([byte]) for byte in range(256))]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MASKWRIGHT_CACHE", str(tmp_path / "kept"))
    monkeypatch.setattr(compiled, "LIBRARY", compiled.LIBRARY or object())  # no test waits for numba
    return tmp_path / "kept"


def kept(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")}


def test_the_files_of_a_vocabulary_are_made_and_read_by_whoever_comes_later(folder):
    told = []
    mw.warm(mw.Vocabulary.from_bytes([*BYTES, b'{"', b"warm"], eos=0), progress=lambda *each: told.append(each))
    files = kept(folder)
    assert any(name.startswith("json-") for name in files)
    assert [done for _, done, _ in told] == list(range(1, len(first_use.KINDS) + 1))
    vocabulary = mw.Vocabulary.from_bytes([*BYTES, b'{"', b"warm"], eos=0)
    mw.compile_json_schema({"type": "object", "properties": {"a": {"type": "string", "maxLength": 9}}}, vocabulary)
    assert kept(folder) == files


@pytest.mark.parametrize("kind", first_use.KINDS)
def test_each_kind_is_used_with_a_vocabulary_of_bytes(kind, folder):
    first_use.KINDS[kind](mw.Vocabulary.from_bytes(BYTES, eos=0))


@pytest.mark.parametrize("eos", [0, None])
def test_kinds_that_a_vocabulary_cannot_have_are_left_out(eos, folder):
    mw.warm(mw.Vocabulary.from_bytes([b"", b"a", b"b"], eos=eos))


@pytest.mark.parametrize(
    ("processes", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)]
)
def test_a_number_of_processes_that_is_none_is_refused(processes, error):
    with pytest.raises(error, match="processes"):
        mw.warm(processes=processes)


def test_the_command_says_what_is_ready(folder):
    if not hasattr(compiled.LIBRARY, "variant"):
        pytest.skip("numba compiles the kernels of this process")
    done = CliRunner().invoke(main, ["warm"])
    assert (done.exit_code, done.output.split()[:4]) == (0, ["ready;", "this", "process", "has"]), done.output
