"""What an engine loads of the package where it does not name the plugin."""

from __future__ import annotations

import subprocess
import sys

import pytest

import maskwright as mw

LOAD = """
import sys, types

class Missing:  # what kernels and numba are to a plugin that is not named
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numba", "llvmlite", "torch", "numpy"):
            raise ImportError(f"{name} was imported")

sys.meta_path.insert(0, Missing())
vllm, envs, logger = (types.ModuleType(name) for name in ("vllm", "vllm.envs", "vllm.logger"))
vllm.__version__, vllm.envs, envs.VLLM_PLUGINS, logger.init_logger = "0.1", envs, NAMED, None
sys.modules.update({"vllm": vllm, "vllm.envs": envs, "vllm.logger": logger})
from maskwright.engines.ENGINE.plugin import register
CALL
print(*sorted(name for name in sys.modules if name.partition(".")[0] == "maskwright"))
"""


def loaded(engine: str, named: str, call: str) -> list[str]:
    code = LOAD.replace("ENGINE", engine).replace("NAMED", named).replace("CALL", call)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("named", ["None", "[]", '["other"]'])
def test_vllm_loads_the_plugins_file_alone_where_it_does_not_name_it(named: str) -> None:
    found = loaded("vllm", named, "register()")
    assert found == ["maskwright", *(f"maskwright.engines{more}" for more in ("", ".vllm", ".vllm.plugin"))]


def test_sglang_loads_the_plugins_file_alone_until_the_backend_is_named() -> None:
    call = """
added, hooks = [], []

def put(name, **members):
    made = sys.modules.setdefault(name, types.ModuleType(name))
    made.__path__ = []
    vars(made).update(members)

for name in ("sglang", *(f"sglang.srt{more}" for more in ("", ".arg_groups", ".constrained", ".plugins", ".sampling"))):
    put(name)
put("sglang.srt.arg_groups.choices", GRAMMAR_BACKEND_CHOICES=[], add_grammar_backend_choices=added.extend)
put("sglang.srt.constrained.base_grammar_backend", register_grammar_backend=lambda name, make: added.append(name))
registry = types.SimpleNamespace(register=lambda *told: hooks.append(told))
put("sglang.srt.plugins.hook_registry", HookType=types.SimpleNamespace(AFTER="after"), HookRegistry=registry)
params = type("SamplingParams", (), {"verify": lambda self, vocab_size: None})
put("sglang.srt.sampling.sampling_params", SamplingParams=params)
register()
assert added == ["maskwright"] * 2
((path, check, kind),) = hooks
check(None, types.SimpleNamespace(custom_params={"other": 1}), 8)
"""
    found = loaded("sglang", "None", call)
    assert found == ["maskwright", *(f"maskwright.engines{more}" for more in ("", ".sglang", ".sglang.plugin"))]


def test_names_of_the_package_are_imported_when_they_are_asked_for() -> None:
    code = (
        "import sys, pickle, maskwright as mw\n"
        "assert [name for name in sys.modules if name.startswith('maskwright')] == ['maskwright']\n"
        "assert set(mw.__all__) <= set(dir(mw)) and 'Vocabulary' not in vars(mw)\n"
        "assert mw.Vocabulary is mw.Vocabulary and pickle.loads(pickle.dumps(mw.Vocabulary)) is mw.Vocabulary\n"
        "assert mw.errors.ConstraintError is mw.errors.ConstraintError\n"
        "from maskwright import *\n"
        "assert all(globals()[name] is getattr(mw, name) for name in mw.__all__)\n"
        "try:\n    mw.Vocabluary\nexcept AttributeError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "module 'maskwright' has no attribute 'Vocabluary'"
    assert all(getattr(mw, name).__name__ == name for name in mw.__all__)
