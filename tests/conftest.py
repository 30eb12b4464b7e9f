"""Settings for all tests."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# the clock decides nothing: a first example may compile kernels, and any may wait for a processor. The same examples
# each time, unless a seed is given: --hypothesis-seed=random looks for others
settings.register_profile(
    "maskwright", deadline=None, derandomize=not any(x.startswith("--hypothesis-seed") for x in sys.argv),
    database=None, suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
settings.load_profile("maskwright")

os.environ.setdefault("OMP_NUM_THREADS", "1")  # tests run in several processes: more threads only get in the way
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# what is compiled here is run once or twice: a quarter less time. Examples and benchmarks run what users run
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

if "MASKWRIGHT_CACHE" not in os.environ:  # nothing a user has kept may decide a test, and nothing of tests is kept
    os.environ["MASKWRIGHT_CACHE"] = tempfile.mkdtemp(prefix="maskwright-tests-")
    atexit.register(shutil.rmtree, os.environ["MASKWRIGHT_CACHE"], ignore_errors=True)


_MOST_MEMORY = 4 << 30  # of a process, from which on it forgets what JAX compiled: over all tests that is gigabytes


@pytest.fixture(scope="module", autouse=True)
def _forget_compiled() -> Iterator[None]:
    """Let go of what JAX compiled for a module once it is much: it is of little use to others."""
    yield
    status = Path("/proc/self/statm")  # only Linux has it
    if "jax" in sys.modules and status.exists():
        resident = int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        if resident > _MOST_MEMORY:
            sys.modules["jax"].clear_caches()


SLOW = {  # each takes long, and others of the same test, or of nearly the same claim, stay
    "test_arena.py::test_budgets_are_kept_as_each_table_keeps_them[jax-6]",
    "test_arena.py::test_budgets_are_kept_as_each_table_keeps_them[numpy-1]",
    "test_arena.py::test_budgets_are_kept_as_each_table_keeps_them[numpy-6]",
    "test_arena.py::test_near_the_depth_it_says_what_a_table_of_less_depth_says[numpy-True]",
    "test_arena.py::test_near_the_depth_it_says_what_a_table_of_less_depth_says[torch-True]",
    "test_beam.py::test_with_enough_beams_the_result_is_the_exact_ranking_of_all_sequences[jax]",
    "test_beam.py::test_with_enough_beams_the_result_is_the_exact_ranking_of_all_sids[jax]",
    "test_benchmarks_json_schema.py::test_it_runs_and_maskwright_passes",
    "test_graph_operations.py::test_a_vocabulary_of_262_144_tokens[gathers]",
    "test_graph_operations.py::test_a_vocabulary_of_262_144_tokens[kernels]",
    "test_nested_devices.py::test_torch_agrees_with_numpy_on_masks_steps_and_stacks[kernels]",
    "test_operations.py::test_candidates_and_select_at_each_level_agree_with_numpy[jax]",
    "test_operations.py::test_large_tables_with_masks_and_tails_agree_with_numpy[jax]",
    "test_operations.py::test_tables_with_indices_of_64_bits_work[jax]",
    "test_sampling.py::test_wide_rows_are_drawn_from_in_blocks_with_the_right_probabilities[dtype-numpy]",
    "test_sampling.py::test_wide_rows_are_drawn_from_in_blocks_with_the_right_probabilities[tempered-numpy]",
    "test_sampling.py::test_wide_rows_are_drawn_from_in_blocks_with_the_right_probabilities[tempered-torch]",
    "test_sampling.py::test_all_of_it_jits_in_jax_with_the_table_as_an_argument[regex]",
    "test_sampling.py::test_all_of_it_jits_in_jax_with_the_table_as_an_argument[sids with eos]",
    "test_sampling.py::test_each_row_has_its_own_constraint_wherever_it_stands[jax]",
    "test_sampling.py::test_sampling_from_allowed_logits_is_sampling_from_all_of_them[jax]",
    "test_sorted_matrix.py::test_candidates_and_select_at_each_level_agree_with_the_table[jax-late]",
    "test_sorted_matrix.py::test_decoders_find_with_a_matrix_what_they_find_with_a_table[jax-few tokens]",
    "test_sorted_matrix.py::test_operations_at_all_prefixes_agree_with_the_table[jax-late-True]",
    "test_speculative.py::test_with_jumps_the_distribution_is_that_of_sampling_with_jumps[record-good-branches3]",
    "test_speculative.py::test_with_a_sorted_matrix_all_is_as_with_the_table_of_the_same_set[False-jax-branches4]",
}


# Two processes begin each with a half of the tests, and compile the kernels that they come upon. The first half is JSON
# Schema's and its kin's, and compiles most kernels; the second begins with what JAX compiles, and finds them later
SECOND_HALF = [
    "test_vocabulary.py", "test_operations.py", "test_sorted_matrix.py", "test_sampling.py", "test_beam.py",
    "test_baselines.py", "test_speculative.py", "test_on_demand.py", "test_jump.py", "test_tree_beams.py",
    "test_graph_operations.py", "test_self_draft.py", "test_sequences.py", "test_table.py", "test_transformers.py",
    "test_automata.py", "test_benchmarks_regex.py", "test_demo.py", "test_layout.py", "test_reader.py",
    "test_regex.py", "test_cli.py",
]  # fmt: skip


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is slow, and put all in the order of the halves."""
    for item in items:
        if item.nodeid.rpartition("/")[2] in SLOW:
            item.add_marker(pytest.mark.slow)
    place = {name: 1 + at for at, name in enumerate(SECOND_HALF)}
    items.sort(key=lambda item: place.get(item.path.name, 0))
