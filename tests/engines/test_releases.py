"""Which releases of engines are known, and what is told of others."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from maskwright.engines import releases

CODE = """
class Chat:
    @property
    def of(self): ...

    def ask(self, text: str, *, times: int = 1) -> str:
        'Return an answer.'
        return text * times
"""


def test_each_function_of_the_table_is_in_a_known_release_once():
    for engine, parts in releases.table().items():
        for part, codes in parts.items():
            assert codes
            for hashes in codes.values():
                told = [each for found in hashes.values() for each in found.split()]
                assert len(told) == len(set(told)) == len(releases.known_releases(engine, part))


def test_a_hash_sees_what_runs_and_nothing_else():
    first = releases.digest(CODE)
    for same in (
        CODE.replace("text: str", "text"), CODE.replace("'Return an answer.'\n        ", ""), CODE + "# more",
        CODE.replace(" -> str", "").replace("text * times", "(text*times)"),
    ):  # fmt: skip
        assert releases.digest(same) == first
    for other in (
        CODE.replace("= 1", "= 2"), CODE.replace("@property", "@cache"), CODE.replace("text *", "times *"),
        CODE.replace("times: int = 1", "times"), CODE.replace("*, ", ""), CODE.replace("ask", "asks"),
    ):  # fmt: skip
        assert releases.digest(other) != first


def test_what_a_release_changed_is_told_and_it_may_be_added(tmp_path, monkeypatch, capsys):
    table = {"vLLM": {"chats": {"engine.chat:Chat.ask(self, text, times)": {}, "engine.chat:Chat": {}}}}
    file = tmp_path / "table.json"
    file.write_text(json.dumps(table))
    monkeypatch.setattr(releases, "FILE", file)
    releases.table.cache_clear()
    try:
        for release, code in (
            ("1.0.0", CODE), ("1.1.0", CODE.replace("text *", "times *")), ("1.10.0", CODE),
            ("2.0.0", CODE.replace("text: str", "words")), ("3.0.0", ""),
        ):  # fmt: skip
            (tmp_path / release / "engine" / "chat").mkdir(parents=True)
            (tmp_path / release / "engine" / "chat" / "__init__.py").write_text(code)
        for release in ("1.0.0", "1.10.0"):
            releases.add("vLLM", release, tmp_path / release)
        assert json.loads(file.read_text()) == releases.table()
        assert [*releases.table()["vLLM"]["chats"]["engine.chat:Chat"].values()] == ["1.0.0 1.10.0"]
        assert [*releases.changes("vLLM", "1.10.0", tmp_path / "1.10.0")] == []
        given = ["releases", "vLLM", "1.1.0", str(tmp_path / "1.1.0"), "--old", str(tmp_path / "1.0.0"), "--add"]
        monkeypatch.setattr(sys, "argv", given)
        releases.main()
        said = capsys.readouterr().out
        assert "chats: engine.chat:Chat.ask differs in 1.1.0" in said
        assert "-    return text * times\n+    return times * times" in said
        assert releases.known_releases("vLLM") == ["1.0.0", "1.1.0", "1.10.0"]
        told = [*releases.changes("vLLM", "2.0.0", tmp_path / "2.0.0")]
        assert told[0] == "chats: engine.chat:Chat.ask takes (self, words, times) and not (self, text, times) in 2.0.0"
        told = [*releases.changes("vLLM", "3.0.0", tmp_path / "3.0.0")]
        assert told == [f"chats: engine.chat:{each} is not in 3.0.0" for each in ("Chat.ask", "Chat")]
    finally:
        releases.table.cache_clear()


def test_code_that_runs_and_its_source_have_one_hash(tmp_path):
    """A wheel is read as it is; the code in this process by the source that Python says it has."""
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "told.py").write_text(CODE.replace("@property", "@staticmethod"))
    code = (
        "import sys; from pathlib import Path; from maskwright.engines import releases as r; import zipfile\n"
        "folder = Path(sys.argv[1]); wheel = folder / 'told.whl'\n"
        "zipfile.ZipFile(wheel, 'w').write(folder / 'told.py', 'told.py')\n"
        "sys.path.insert(0, str(folder))\n"
        "for where in ('told:Chat', 'told:Chat.of', 'told:Chat.ask'):\n"
        "    live = r.digest(r.source_of(r.code_at(where)))\n"
        "    assert live == r.digest(r.source_in(folder, where)) == r.digest(r.source_in(wheel, where)), where\n"
        "assert r.source_in(wheel, 'told:No') is None and r.code_at('told:No') is None is r.code_at('no.told:No')\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("engine", ["vLLM", "SGLang"])
def test_known_releases_are_in_their_order(engine):
    found = releases.known_releases(engine)
    assert found == sorted(found, key=lambda each: [*map(int, each.split("."))])
    assert len(found) > 2
