"""The report: what was measured, as a table."""

from __future__ import annotations

import itertools

from ...harness import machine
from .step import MEASURED
from .times import ROWS, Record


def report(results: Record) -> str:
    """Return what was measured as a table."""
    lines = [
        "# Serving",
        "",
        f"Made by `python -m benchmarks.suites.serving --data FILE`. Tekken, 131,072 tokens; {machine()['processor']}.",
        "", "| what | bar | measured |", "| --- | --- | --- |",
    ]  # fmt: skip

    def row(what: str, bar: str, measured: str) -> None:
        lines.append(f"| {what} | {bar} | {measured} |")

    if "cache" in results:
        part = results["cache"]
        for name, shown in (("hit_by_dict_us", "a dict"), ("hit_by_text_us", "text")):
            row(
                f"cache hit by {shown}, {part['resident']:,} schemas resident", "under 20 us",
                f"p50 {part[name]['p50']:.1f} us, p99 {part[name]['p99']:.0f} us",
            )  # fmt: skip
        row(
            "compiling instead", "", f"p50 {part['compile_us']['p50']:,.0f} us, p99 {part['compile_us']['p99']:,.0f} us"
        )
        row(f"{part['threads']} threads ask for 10 new schemas", "10 compilations", str(part["compilations"]))
    if "step" in results:
        part = results["step"]
        for kind, which in itertools.product(("float32", "bfloat16"), MEASURED[2:]):
            what, bar = _SHOWN[which]
            shown = f"{part[kind]['maskwright'][which]['p50']:,.0f} us"
            for name in ("llguidance", "xgrammar"):
                engine, ratio = part[kind][name][which], part[kind][name][which]["times_ours"]
                shown += f"; {name} {engine['p50']:,.0f}" + (f", **{ratio:.1f} times ours**" if ratio else "")
            row(f"{what}, {kind}", bar, shown)
        for name, each in part["draw"].items():
            row(
                f"drawing a token of each row, {name}, log P(allowed) with it", "",
                f"{each['kernel_us'] / 1e3:.1f} ms; by array operations {each['operations_us'] / 1e3:,.0f}",
            )  # fmt: skip
        for which, what in (("fill", "masks alone"), ("commit", "taking tokens alone")):
            each = (f"{name} {part['float32'][name][which]['p50']:,.0f}" for name in ("llguidance", "xgrammar"))
            row(what, "", "; ".join((f"{part['float32']['maskwright'][which]['p50']:,.0f} us", *each)))
        for kind in ("float32", "bfloat16"):
            medians = {
                name: {which: part[kind][name][which]["p50"] for which in ("fill", "commit", "step")}
                for name in ("maskwright", "llguidance", "xgrammar")
            }
            own = medians.pop("maskwright")
            ours = own["fill"] + own["commit"]
            peers_take = {name: each["step"] - each["commit"] for name, each in medians.items()}
            compared = (f"{name} {took:,.0f}, **{took / ours:.1f} times ours**" for name, took in peers_take.items())
            row(
                f"masks and taking tokens, no logit written; peers: masks made and applied, {kind}", "5 times ours",
                "; ".join((f"{ours:,.0f} us", *compared)),
            )  # fmt: skip
        for kind in ("float32", "bfloat16"):
            row(f"-inf over as many logits, {kind}: `Tensor.fill_`", "", f"{part[kind]['write_us']['p50']:,.0f} us")
    if "arena" in results:
        part = results["arena"]
        row(
            f"arena with {part['tables']:,} schemas, the smallest tables", "under 512 MB",
            f"{part['arena_bytes'] / 1e6:,.0f} MB",
        )  # fmt: skip
        row("these tables, each by itself", "", f"{part['tables_bytes'] / 1e6:,.0f} MB")
        row(
            "what a table takes of the arena", "",
            f"p50 {part['takes']['p50'] / 1e3:,.0f} KB, p99 {part['takes']['p99'] / 1e3:,.0f} KB; the first, with what "
            f"all share, {part['true_takes'] / 1e3:,.0f} KB",
        )  # fmt: skip
        row("adding a table", "", f"p50 {part['add_us']['p50']:,.0f} us, p99 {part['add_us']['p99']:,.0f} us")
        row("adding one that is there", "", f"p50 {part['add_again_us']['p50']:.1f} us")
    if "server" in results:
        part = results["server"]
        free, held = part["unconstrained"], part["constrained"]
        row(
            f"server: {part['schemas']} schemas, {held['requests']:,} requests, {part['clients']} clients",
            "all valid and complete",
            f"{part['failed']} failed, {part['incomplete']} incomplete, {part['invalid']} invalid",
        )
        why = ", ".join(f"{count} {code}" for code, count in part["refused"].items())
        row("schemas that it refused before it had so many", "", f"{sum(part['refused'].values())}: {why}")
        for name, each in (("constrained", held), ("the same server unconstrained, as many tokens", free)):
            row(
                name, "",
                f"{each['requests_per_s']:,.0f} requests/s, {each['tokens_per_s']:,.0f} tokens/s, step "
                f"{each['step_us'] / 1e3:.1f} ms; latency p50 {each['latency_ms']['p50']:,.0f} ms, p99 "
                f"{each['latency_ms']['p99']:,.0f} ms",
            )  # fmt: skip
    return "\n".join(lines) + "\n"


_SHOWN = {
    "step": (f"{ROWS} rows with as many schemas, logits masked in place and tokens taken", "5 times ours"),
    "greedy": ("the same by drawing from masks, the best token; peers: masked, then drawn by the same kernel", ""),
    "sampled": ("the same, drawn at temperature 1", ""),
    "added to greedy": ("what that takes beyond drawing the best without any constraint", "5 times ours"),
    "added to sampled": ("beyond drawing at temperature 1 without any", "5 times ours"),
}
