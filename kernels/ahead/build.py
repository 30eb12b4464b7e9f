"""The library of all kernels: made by several processes at once, and linked by a C compiler.

`python -m maskwright.kernels.ahead.build FILE` makes it, with `--here` for the processor of this machine alone.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Thread

import numpy as np

from ...errors import Advice, KernelError
from ..native import AHEAD, PACKAGE, library_digest, read
from ..processor import VARIANTS, Variant, fitting

_FLAGS = ("-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,--gc-sections", "-Wl,-z,now", "-s")


def compiler() -> list[str] | None:
    """Return the command of the C compiler, None if there is none, or no library can be made for this machine."""
    if not VARIANTS or os.name != "posix" or sys.platform != "linux":
        return None
    asked = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    for command in (asked, ["cc"], ["gcc"], ["clang"]):
        if shutil.which(command[0]):
            return command
    return None


def build(
    target: Path, variants: Sequence[Variant], *, processes: int | None = None,
    done: Callable[[int, int], None] = lambda done, of: None,
) -> None:  # fmt: skip
    """Compile all kernels and write the library, with code for these variants of this machine's architecture.

    processes: as many as there are processors, up to 8, if None. done: called with how many kernels are typed, and how
    many there are. Raises KernelError if there is no C compiler, or if a process fails.
    """
    cc, digest = compiler(), library_digest()
    if cc is None or digest is None or not variants:
        raise KernelError(
            "kernels cannot be compiled ahead here: that takes Linux on x86-64 or aarch64, and a C compiler",
            remedies=[Advice("install gcc"), Advice("let numba compile them, which it does if no library is there")],
        )
    parts = processes or min(os.cpu_count() or 1, 8)  # each takes a gigabyte, and kernels that others make too
    with tempfile.TemporaryDirectory() as kept:
        folder = Path(kept)
        _lower(folder, parts, variants, done)
        entries = [each for part in range(parts) for each in json.loads((folder / f"entries-{part}.json").read_text())]
        (folder / "entries.c").write_text("".join(_declared(entries, variants, digest)))
        objects = [folder / f"{variant.name}-{part}.o" for variant in variants for part in range(parts)]
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        includes = [f"-I{folder}" for folder in (sysconfig.get_paths()["include"], np.get_include())]
        sources = [AHEAD / "glue.c", folder / "entries.c", *objects]
        _run([*cc, *_FLAGS, *includes, f"-I{AHEAD}", "-o", temporary, *sources, "-lm"])
        temporary.replace(target)


def _lower(folder: Path, parts: int, variants: Sequence[Variant], done: Callable[[int, int], None]) -> None:
    """Have one process for each part make its object files."""
    environment = os.environ | {
        "MASKWRIGHT_JIT": "1", "NUMBA_CPU_NAME": VARIANTS[0].cpu, "NUMBA_CPU_FEATURES": "",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "MASKWRIGHT_CACHE": str(folder / "cache"),
    }  # fmt: skip
    command = [sys.executable, "-m", f"{PACKAGE}.kernels.ahead.lower", str(folder)]
    names = [each.name for each in variants]
    running = [
        subprocess.Popen(
            [*command, str(part), str(parts), *names], env=environment, stdout=subprocess.PIPE,
            stderr=(folder / f"errors-{part}").open("w"), text=True,
        )
        for part in range(parts)
    ]  # fmt: skip
    counts, total = [0] * parts, sum("(" in line for line in (AHEAD / "signatures.txt").read_text().splitlines())

    def watch(part: int) -> None:
        out = running[part].stdout
        assert out is not None
        for line in out:
            counts[part] = int(line)
            done(sum(counts), total)

    threads = [Thread(target=watch, args=(part,)) for part in range(parts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for part, process in enumerate(running):
        if process.wait():
            raise KernelError(f"compiling kernels failed: {(folder / f'errors-{part}').read_text()[-4000:]}")


def _declared(entries: list[list[str]], variants: Sequence[Variant], digest: str) -> Iterator[str]:
    """Yield the C source of the tables that `glue.c` reads."""
    yield '#include "tables.h"\n'
    yield f'const char maskwright_digest[] = "{digest}";\n'
    entries = sorted(entries, key=lambda each: (each[1], each[2]))
    names = {(module, name): i for i, (_, module, name, *_) in enumerate(entries)}
    for (_, name), i in names.items():
        yield f'static const char name_{i}[] = "{name}";\n'  # one for all entries of a kernel, by which they are told
    quoted_comma = '", "'
    owners = sorted({owner for _, _, _, _, returned, *_ in entries for owner in re.findall("<(.*?)>", returned)})
    assert len(owners) <= 64  # see `glue.c`
    yield "const char *const maskwright_classes[][2] = {\n"
    yield "".join(f'  {{"{owner.replace(":", quoted_comma)}"}},\n' for owner in owners) + "  {0}};\n"
    numbers = {owner: chr(ord("0") + i) for i, owner in enumerate(owners)}
    for variant in variants:
        loops: list[str] = []
        rows: list[str] = []
        for symbol, module, name, arguments, returned, slots, outs, constants in entries:
            returned = re.sub("<(.*?)>", lambda found: "T" + numbers[found[1]], returned)
            assert max(int(slots), int(outs)) <= 1024, (module, name)
            assert len(returned) <= 64, (module, name)  # and so no tuple in it has more parts: see `glue.c`
            if constants is not None:
                yield f"extern void {symbol}_{variant.name}(int64_t);\n"
                loops.append(f'  {{"{module}", "{name}", "{constants}", {symbol}_{variant.name}}},\n')
            else:
                yield f"extern int32_t {symbol}_{variant.name}(int64_t *, int64_t *, void **);\n"
                told = f'"{module}", name_{names[module, name]}, "{arguments}", "{returned}"'
                rows.append(f"  {{{told}, {symbol}_{variant.name}}},\n".replace("?", "\\?"))  # no trigraphs
        yield f"static const Entry entries_{variant.name}[] = {{\n{''.join(rows)}  {{0}}}};\n"
        yield f"static const Loop loops_{variant.name}[] = {{\n{''.join(loops)}  {{0}}}};\n"
    listed = "".join(f'  {{"{each.name}", entries_{each.name}, loops_{each.name}}},\n' for each in variants)
    yield f"const Variant maskwright_variants[] = {{\n{listed}  {{0}}}};\n"


def _run(command: list[object]) -> None:
    ended = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if ended.returncode:
        raise KernelError(f"the C compiler failed: {ended.stderr[-4000:]}")


def main(target: Path, variants: Sequence[Variant]) -> None:
    """Make the library, unless it is there already and of the sources at hand."""
    digest = library_digest()
    if digest is not None and target.is_file() and read(target, digest) is not None:
        return
    told = 0.0

    def tell(done: int, of: int) -> None:
        nonlocal told
        if time.monotonic() - told > 10 or done == of:
            told = time.monotonic()
            print(f"kernels: {done} of {of}", file=sys.stderr, flush=True)

    build(target, variants, done=tell)


if __name__ == "__main__":
    main(Path(sys.argv[1]), fitting() if "--here" in sys.argv else VARIANTS)
