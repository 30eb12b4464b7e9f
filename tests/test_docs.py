"""What the README and the examples show runs as shown."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import maskwright as mw
from maskwright.cli import drawing
from maskwright.compile import sequences, text
from maskwright.compile.grammar import build as grammars
from maskwright.compile.json_schema import key_order, source
from maskwright.compile.json_schema import request as schema
from maskwright.compile.tags import build as tags
from maskwright.runtime.host import matcher
from maskwright.vocabulary import vocabulary
from tests.strategies import tokenizer_zoo

ROOT = Path(mw.__file__).parent


def run(path: Path, folder: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_DISABLE")}
    command = [sys.executable, "-W", "error", path]
    out = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stderr
    return out.stdout


def test_the_readme_runs_from_top_to_bottom(tmp_path):
    tokenizer, _ = tokenizer_zoo.byte_level_bpe()
    transformers = pytest.importorskip("transformers")
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")
    config = transformers.LlamaConfig(vocab_size=len(tokenizer) + 7, eos_token_id=tokenizer.eos_token_id, **size)
    pytest.importorskip("torch").manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path / "path/to/model")
    tokenizer.save_pretrained(tmp_path / "path/to/model")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) >= 3
    script = tmp_path / "readme.py"
    script.write_text("\n".join(blocks))
    printed = run(script, tmp_path)
    assert "array" in printed
    assert re.search(r"^([0-9]{4}-[0-9]{2}-[0-9]{2}|unknown)$", printed, re.MULTILINE)
    assert "[258]" in printed
    assert re.search(r"^[a-z]{1,9}=[0-9]+(,[a-z]{1,9}=[0-9]+)*$", printed, re.MULTILINE)
    assert re.findall(r"^(True|False) .*<call", printed, re.MULTILINE) == ["True", "True", "False"]
    assert re.search(r"""^name=(['"]).*\1 founded=.* twins=\[.*\]$""", printed, re.MULTILINE)  # as repr quotes it


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_examples_run(path, tmp_path):
    pytest.importorskip("jax" if "jax" in path.stem else "torch")
    printed = run(path, tmp_path)
    assert printed
    assert path.name in (ROOT / "examples" / "README.md").read_text()
    assert "False" not in printed.replace("[ True False]", "")


@pytest.mark.parametrize(
    "module",
    [drawing, grammars, matcher, key_order, schema, sequences, source, tags, text, vocabulary],
    ids=lambda m: m.__name__,
)
def test_docstring_examples_hold(module):
    result = doctest.testmod(module)
    assert result.attempted
    assert result.failed == 0


def test_files_named_in_the_readme_exist():
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "docs" / "design.md"):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
