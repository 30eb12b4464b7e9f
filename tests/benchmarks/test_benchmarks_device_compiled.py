"""Counts are read off the text of compiled code, one for each thing that it does."""

from __future__ import annotations

import pytest

from benchmarks.suites.device_compiled.reading import Code, array_bytes
from benchmarks.suites.device_compiled.targets import UNWANTED, prepare

TEXT = """HloModule jit_step, is_scheduled=true

%fused (p0: s32[1000], p1: s32[4]) -> s32[4] {
  %p0 = s32[1000]{0:T(1024)} parameter(0)
  %p1 = s32[4]{0:T(256)} parameter(1)
  ROOT %g = s32[4]{0:T(256)} gather(%p0, %p1), slice_sizes={1}
}

%body (p: (s32[], s32[4])) -> (s32[], s32[4]) {
  %p = (s32[], s32[4]{0:T(256)}) parameter(0)
  %x = s32[4]{0:T(256)} get-tuple-element(%p), index=1
  %i = s32[]{:T(128)} get-tuple-element(%p), index=0
  %y = s32[4]{0:T(256)} add(%x, %x), backend_config={"estimated_cycles":"100"}
  ROOT %t = (s32[], s32[4]{0:T(256)}) tuple(%i, %y)
}

ENTRY %main (table: s32[1000], nodes: s32[4]) -> s32[4] {
  %table = s32[1000]{0:T(1024)} parameter(0), metadata={op_name="table.row_start"}
  %copy-start = (s32[1000]{0:T(1024)S(1)}, s32[1000]{0:T(1024)}, u32[]{:S(2)}) copy-start(%table)
  %nodes = s32[4]{0:T(256)} parameter(1), metadata={op_name="nodes"}
  %near = s32[4]{0:T(256)} fusion(%table, %nodes), kind=kCustom, calls=%fused, backend_config={"estimated_cycles":"7"}
  %slice-start = ((s32[4]{0:T(256)}), s32[2]{0:T(256)S(1)}, s32[]{:S(2)}) slice-start(%nodes), slice={[0:2]}
  %slice-done = s32[2]{0:T(256)S(1)} slice-done(%slice-start)
  %copy-done = s32[1000]{0:T(1024)S(1)} copy-done(%copy-start)
  %beside = s32[4]{0:T(256)S(1)} fusion(%copy-done, %near), kind=kCustom, calls=%fused
  %zero = s32[]{:T(128)} constant(0)
  %init = (s32[], s32[4]{0:T(256)}) tuple(%zero, %near)
  %while = (s32[], s32[4]{0:T(256)}) while(%init), condition=%missing, body=%body, backend_config={"known_trip_count":{"n":"5"}}
  ROOT %out = s32[4]{0:T(256)} get-tuple-element(%while), index=1
}
""".replace("condition=%missing, ", "")  # noqa: E501


def test_a_loop_counts_as_often_as_it_runs():
    running = [(one.opcode, times) for _, one, times in Code(TEXT).running]
    assert running == [
        ("copy-start", 1), ("fusion", 1), ("slice-start", 1), ("fusion", 1), ("while", 1), ("add", 5)
    ]  # fmt: skip


def test_fused_operations_are_counted_by_kind():
    assert Code(TEXT).opcodes()["gather"] == 2


def test_arrays_of_the_table_that_are_copied_whole_have_their_names():
    assert Code(TEXT).table_copies() == [("table.row_start", 4000)]


def test_a_gather_moves_what_it_fetches_and_memory_beside_the_core_counts_for_nothing():
    copied, near, sliced, beside, rounds = 4000, 16 + 16 + 16, 8, 16, 5 * 3 * 16
    assert Code(TEXT).bytes_moved() == copied + near + sliced + beside + rounds


@pytest.mark.parametrize(
    ("kind", "shape", "size"),
    [
        ("u16", "140,8", 2240),
        ("pred", "3", 3),
        ("bf16", "2,2", 8),
        ("s4", "3", 2),
        ("f32", "", 4),
        ("f8e4m3fn", "5", 5),
    ],
)
def test_arrays_have_the_bytes_of_their_type(kind, shape, size):
    assert array_bytes(kind, shape) == size


def test_text_without_an_entry_is_refused():
    with pytest.raises(ValueError, match="no ENTRY"):
        Code("HloModule empty")


def test_settings_that_change_what_is_compiled_do_not_reach_the_compiler():
    environment = prepare({"PATH": "/bin", **dict.fromkeys(UNWANTED, "1")})
    assert not set(UNWANTED) & environment.keys()
    assert environment["JAX_PLATFORMS"] == "cpu"
