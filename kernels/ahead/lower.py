"""Machine code of kernels for several processors, made by numba without running any of it.

Numba types and lowers every kernel. Nothing is optimised before all of it is one LLVM module, which is then optimised
once for each kind of processor. In front of each kernel stands an *entry*: a C function that takes all arguments from
an array of 64-bit numbers and writes what is returned into another. `glue.c` calls it.

Numba has no public way to do this. All that is used of its private parts is in this file.

`python -m maskwright.kernels.ahead.lower FOLDER PART PARTS VARIANT ...` does it for a part of all signatures.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from llvmlite.binding import Linkage
from numba.core import caching, cgutils, codegen, config, cpu, dispatcher, llvm_bindings
from numba.core import types as _types
from numba.core.registry import cpu_target
from numba.core.runtime import nrtdynmod

from .. import jit
from ..native import PACKAGE
from ..processor import FEATURE, VARIANTS, Variant
from .signatures import Signature, read

if TYPE_CHECKING:
    from ..compiled import NumbaType

_numba: Any = SimpleNamespace(
    **{
        name: getattr(module, name)
        for module, names in (
            (caching, ["NullCache"]),
            (cgutils, ["normalize_ir_text"]),
            (codegen, ["CPUCodeLibrary", "JITCodeLibrary", "_parse_refprune_flags"]),
            (config, ["LOOP_VECTORIZE", "SLP_VECTORIZE"]),
            (cpu, ["CPUContext"]),
            (dispatcher, ["_FunctionCompiler"]),
            (llvm_bindings, ["create_pass_builder"]),
            (nrtdynmod, ["create_nrt_module"]),
        )
        for name in names
    }
)
"""What is used of numba beside its types."""

types: Any = _types

_I1, _I32, _I64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)
_NUMBERS, _EXCEPTION = _I64.as_pointer(), ir.IntType(8).as_pointer().as_pointer()

_Number: TypeAlias = ir.PointerType | ir.DoubleType | ir.FloatType | ir.IntType

_LETTERS = {np.dtype(kind): np.dtype(kind).char for kind in "?bBhHiIfd"} | {np.dtype("q"): "q", np.dtype("Q"): "Q"}


class Entry(NamedTuple):
    """What calls a kernel, and for which arguments. `glue.c` says what the letters mean."""

    symbol: str
    module: str
    name: str
    arguments: str
    returned: str
    slots: int  # 64-bit numbers of all arguments
    outs: int  # and of what is returned
    loop: str | None  # the constants of a native loop


class _Lowered(NamedTuple):
    signature: Signature
    result: Any  # numba's CompileResult


def lower(signatures: list[Signature]) -> list[_Lowered]:
    """Return what numba makes of each signature, typed and lowered but not optimised."""
    for module in sorted({each.module for each in signatures}):
        importlib.import_module(f"{PACKAGE}.{module}")
    _leave_out_code()
    jit.ahead = True
    for made in jit.every:
        made._cache = _numba.NullCache()
        vars(made).pop("compile", None)
    lowered = []
    for done, each in enumerate(signatures, 1):
        try:
            kernel = jit.kernels[f"{PACKAGE}.{each.module}", each.name]
        except KeyError:
            raise SystemExit(f"signatures.txt names a kernel that is not there: {each.module} {each.name}") from None
        kernel.compile(each.arguments)
        lowered.append(_Lowered(each, kernel.overloads[each.arguments]))
        print(f"{done}", flush=True)  # whoever waits counts
    return lowered


def _leave_out_code() -> None:
    """Have numba stop where it would optimise, make machine code of functions or wrap them for Python."""
    context: Any = cpu_target.target_context
    context.refresh()
    library, nowhere = _numba.CPUCodeLibrary, _numba.JITCodeLibrary

    def finalize(self: Any) -> None:
        self._raise_if_finalized()
        self._finalized = True
        for linked in self._linking_libraries:
            self._reload_init.update(linked._reload_init)

    def optimize(self: codegen.CPUCodeLibrary, module: llvm.ModuleRef) -> None:
        module.data_layout = self._codegen._data_layout

    flags = _numba._FunctionCompiler._customize_flags

    def without_wrappers(self: Any, given: Any) -> Any:
        given = flags(self, given)
        given.no_cpython_wrapper = given.no_cfunc_wrapper = True
        return given

    library.finalize, library._optimize_functions = finalize, optimize
    library._get_module_for_linking = lambda self: self._final_module
    nowhere.get_pointer_to_function = lambda self, name: 1
    _numba.CPUContext.get_executable = lambda self, library, description, environment: [].append  # one for each: a key
    _numba._FunctionCompiler._customize_flags = without_wrappers


def link(lowered: list[_Lowered], prefix: str) -> tuple[Any, list[Entry]]:
    """Return one LLVM module of all that was lowered, in which only entries can be seen from outside, and the entries.

    prefix: of the entries' names.
    """
    context: Any = cpu_target.target_context
    layout = str(_machine(VARIANTS[0]).target_data)
    whole = llvm.parse_assembly(str(context.codegen()._create_empty_module("maskwright_kernels")))
    whole.data_layout = layout
    seen: set[int] = set()

    def add(library: codegen.CPUCodeLibrary) -> None:
        if id(library) in seen:
            return
        seen.add(id(library))
        for linked in library._linking_libraries:
            add(linked)
        module = library._final_module
        _mergeable(module, layout)
        whole.link_in(module, preserve=True)

    for each in lowered:
        add(each.result.library)
    made = ir.Module("entries")
    made.triple, made.data_layout = llvm.get_process_triple(), layout
    entries = [_entry(context, made, each, f"{prefix}_{i}") for i, each in enumerate(lowered)]
    for text in (str(made), _numba.normalize_ir_text(str(_numba.create_nrt_module(context)[0]))):
        module = llvm.parse_assembly(text)
        if text != str(made):
            _mergeable(module, layout)
        whole.link_in(module)
    _hide(whole, {each.symbol for each in entries})
    whole.verify()
    return whole, entries


def _mergeable(module: llvm.ModuleRef, layout: str) -> None:
    """Have the functions of a module merge with those of the same name."""
    module.data_layout = layout
    for function in module.functions:
        if not function.is_declaration:
            function.linkage = "weak_odr"


def _hide(module: llvm.ModuleRef, symbols: set[str]) -> None:
    """Leave only these symbols for the linker."""
    shared = (Linkage.common, Linkage.external, Linkage.weak_any, Linkage.linkonce_odr)
    for function in module.functions:
        if not function.is_declaration:
            function.linkage = "external" if function.name in symbols else "internal"
            function.visibility = "hidden" if function.name in symbols else "default"
    for variable in module.global_variables:
        if not variable.is_declaration and variable.linkage in shared:
            variable.linkage, variable.visibility = "internal", "default"


def object_code(module: llvm.ModuleRef, variant: Variant) -> bytes:
    """Return the machine code of a module for a kind of processor."""
    chosen = llvm.parse_bitcode(module.as_bitcode())
    if any(each.name == FEATURE for each in chosen.global_variables):
        fact = ir.Module("processor")
        fact.triple, fact.data_layout = module.triple, module.data_layout
        number = ir.GlobalVariable(fact, _I1, FEATURE)
        number.global_constant, number.initializer = True, _I1(int(variant.stores_by_masks))
        chosen.link_in(llvm.parse_assembly(str(fact)))
        _hide_variable(chosen, FEATURE)
    for function in list(chosen.functions):
        if not function.is_declaration and function.linkage == Linkage.external:
            function.name = f"{function.name}_{variant.name}"
    machine = _machine(variant)
    cheap = {"opt": 0, "loop_vectorize": False, "slp_vectorize": False}
    full = {"opt": 3, "loop_vectorize": bool(_numba.LOOP_VECTORIZE), "slp_vectorize": bool(_numba.SLP_VECTORIZE)}
    for settings in (cheap, full):  # as numba does it, with its own pass that prunes counts of references
        builder = _numba.create_pass_builder(machine, **settings)
        passes = builder.getModulePassManager()
        if settings is cheap:
            passes.add_loop_rotate_pass()
            passes.add_instruction_combine_pass()
            passes.add_jump_threading_pass()
        passes.add_refprune_pass(_numba._parse_refprune_flags())
        passes.run(chosen, builder)
    machine.set_asm_verbosity(False)
    return bytes(machine.emit_object(chosen))


def _hide_variable(module: llvm.ModuleRef, name: str) -> None:
    module.get_global_variable(name).linkage = "internal"


def _machine(variant: Variant) -> Any:
    target = llvm.Target.from_triple(llvm.get_process_triple())
    return target.create_target_machine(cpu=variant.cpu, features="", opt=3, reloc="pic", codemodel="default")


# -- entries -----------------------------------------------------------------------------------------------------------


def _entry(context: cpu.CPUContext, module: ir.Module, lowered: _Lowered, symbol: str) -> Entry:
    """Write a C function that calls a kernel, and return what is known of it."""
    signature, described = lowered.signature, lowered.result.fndesc
    kind = context.call_conv.get_function_type(described.restype, described.argtypes)
    kernel = ir.Function(module, kind, described.llvm_func_name)
    returned = kind.args[0].pointee
    shape = (_I64,) if signature.is_loop else (_NUMBERS, _NUMBERS, _EXCEPTION)
    function = ir.Function(module, ir.FunctionType(ir.VoidType() if signature.is_loop else _I32, shape), symbol)
    builder = ir.IRBuilder(function.append_basic_block())
    at = builder.alloca(returned)
    builder.store(ir.Constant(returned, None), at)
    wanted = kind.args[2:]
    if signature.is_loop:
        failed = builder.alloca(kind.args[1].pointee)
        rest = [ir.Constant(each, None) for each in wanted[1:]]
        builder.call(kernel, [at, failed, function.args[0], *rest])
        builder.ret_void()
        constants = ",".join(str(np.dtype(str(each.dtype))) for each in signature.arguments[1:])
        return Entry(symbol, signature.module, signature.name, "", "", 1, 0, constants)
    given, out, exception = function.args
    values = [_read(builder, given, i, each) for i, each in enumerate(wanted)]
    status = builder.call(kernel, [at, builder.bitcast(exception, kind.args[1]), *values])
    whole, outs = builder.load(at), 0
    for path, part in _leaves(returned):
        value = builder.extract_value(whole, path) if path else whole
        builder.store(_as_number(builder, value, part), builder.gep(out, [ir.Constant(_I64, outs)]))
        outs += 1
    builder.ret(status)
    arguments = "".join(map(letters, signature.arguments))
    return Entry(
        symbol,
        signature.module,
        signature.name,
        arguments,
        letters(described.restype, named=True),
        len(wanted),
        outs,
        None,
    )


def letters(kind: NumbaType, *, named: bool = False) -> str:
    """Return a type as `glue.c` reads it. Raises TypeError for one that it cannot handle.

    named: with the class of a named tuple, between <>, in front of its parts, as what is returned has it.
    """
    if isinstance(kind, types.Omitted):
        return "o"
    if isinstance(kind, types.Bytes):
        return "y"
    if isinstance(kind, types.Array):
        return f"A{_letter(kind.dtype)}{kind.ndim}{kind.layout}"
    if isinstance(kind, types.NoneType):
        return "n"
    if isinstance(kind, types.BaseTuple):
        parts = "".join(letters(each, named=named) for each in kind)
        owner = getattr(kind, "instance_class", None) if named else None
        return f"<{owner.__module__}:{owner.__qualname__}>({parts})" if owner else f"({parts})"
    return _letter(kind)


def _letter(kind: NumbaType) -> str:
    if not isinstance(kind, types.Boolean | types.Integer | types.Float):
        raise TypeError(f"a library cannot pass a {kind}")
    return _LETTERS[np.dtype(str(kind))]


def _read(builder: ir.IRBuilder, numbers: ir.Value, i: int, kind: _Number) -> Any:
    """Return number i of an array as a value of a type."""
    value = builder.load(builder.gep(numbers, [ir.Constant(_I64, i)]))
    if isinstance(kind, ir.PointerType):
        return builder.inttoptr(value, kind)
    if isinstance(kind, ir.DoubleType):
        return builder.bitcast(value, kind)
    if isinstance(kind, ir.FloatType):
        return builder.bitcast(builder.trunc(value, _I32), kind)
    return value if kind.width == 64 else builder.trunc(value, kind)


def _as_number(builder: ir.IRBuilder, value: ir.Value, kind: _Number) -> Any:
    if isinstance(kind, ir.PointerType):
        return builder.ptrtoint(value, _I64)
    if isinstance(kind, ir.DoubleType):
        return builder.bitcast(value, _I64)
    if isinstance(kind, ir.FloatType):
        return builder.zext(builder.bitcast(value, _I32), _I64)
    return value if kind.width == 64 else builder.zext(value, _I64)


def _leaves(kind: ir.Type, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Yield the numbers that a returned value consists of, with the way to each."""
    if isinstance(kind, ir.LiteralStructType | ir.IdentifiedStructType):
        for i, part in enumerate(kind.elements):
            yield from _leaves(part, (*path, i))
    elif isinstance(kind, ir.ArrayType):
        for i in range(kind.count):
            yield from _leaves(kind.element, (*path, i))
    else:
        yield path, kind


def main(folder: Path, part: int, parts: int, names: list[str]) -> None:
    """Write object files for the variants of these names, and entries, of a part of all signatures into a folder."""
    every = read()
    signatures = [each for i, each in enumerate(every) if i * parts // len(every) == part]
    module, entries = link(lower(signatures), f"maskwright_{part}")
    for variant in (each for each in VARIANTS if each.name in names):
        (folder / f"{variant.name}-{part}.o").write_bytes(object_code(module, variant))
    (folder / f"entries-{part}.json").write_text(json.dumps(entries))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
