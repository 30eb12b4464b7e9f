"""Decoders beside one another: model calls, time and cache entries, on one small model in one process.

    python -m benchmarks.suites.decode [--data FILE] [--device cuda] [--quick]

trains two Llama models, of 4 layers and of 1, for a minute on made-up JSON documents of one schema, and decodes with
them under that schema:

- sampling one token a call, with jumps over what is forced, and by speculation, chains and trees, with jumps and
  without: calls of the model for each document, tokens it reads, time;
- unbiased sampling by the number of candidates: how many it takes, how far masking alone is from the model;
- beam search with a cache for each beam and with one for all, by beams and length of the prompt: entries, time.

Without a model: the time of computing only allowed logits against all, by vocabulary and tokens allowed; and, with
--data (the schemas of `json_schema`), how much of real documents is forced, by family of schemas. Writes
`results/decode.json`, and table and plots beside it.
"""

from __future__ import annotations

import argparse
import collections
import json
import random
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import torch
from rich.progress import track
from transformers import LlamaConfig, LlamaForCausalLM

import maskwright as mw
from maskwright.compile.json_schema.layout import Whitespace
from maskwright.runtime import torch_ops
from maskwright.runtime.decode import allowed_logits, count_forced, sample_jumping, sample_unbiased, speculative_sample
from maskwright.runtime.integrations.reader import TransformersReader
from maskwright.runtime.integrations.tree_beams import tree_beam_search

from .. import peers
from ..harness import RESULTS, write_json
from .json_schema.cases import read

matplotlib.use("Agg")

Record = dict[str, Any]
WORDS = ["red", "green", "blue", "large", "small", "wool", "cotton", "silk", "summer", "winter", "classic", "sport"]
NAMES = ["Coat", "Shirt", "Scarf", "Boots", "Jacket", "Dress", "Gloves", "Hat"]
SCHEMA: Any = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "price": {"type": "integer", "minimum": 1, "maximum": 999},
        "tags": {"type": "array", "items": {"enum": WORDS}, "maxItems": 4},
        "sizes": {"type": "array", "items": {"enum": ["XS", "S", "M", "L", "XL"]}, "maxItems": 3},
        "in_stock": {"type": "boolean"},
        "similar": {"type": "array", "items": {"$ref": "#/$defs/item"}, "maxItems": 2},
    },
    "required": ["name", "price", "tags", "sizes", "in_stock"],
    "additionalProperties": False,
}
SCHEMA["$defs"] = {"item": {key: SCHEMA[key] for key in ("type", "properties", "required", "additionalProperties")}}
SEPARATORS = (", ", ": ")


def document(rng: random.Random, depth: int = 0) -> Record:
    """Return a made-up document of the schema."""
    out = {
        "name": " ".join([*rng.sample(WORDS, rng.randint(0, 2)), rng.choice(NAMES)]),
        "price": rng.randint(5, 300),
        "tags": rng.sample(WORDS, rng.randint(0, 3)),
        "sizes": rng.sample(["XS", "S", "M", "L", "XL"], rng.randint(1, 3)),
        "in_stock": rng.random() < 0.8,
    }
    if depth == 0 and rng.random() < 0.3:
        out["similar"] = [document(rng, 1)]
    return out


def vocabulary() -> mw.Vocabulary:
    """Return all bytes and the pieces that such documents have most."""
    pieces = [f" {word}" for word in WORDS + NAMES] + WORDS + NAMES
    pieces += [
        '{"',
        '": ',
        '", "',
        '": "',
        '["',
        '"]',
        ", ",
        '"}',
        "name",
        "price",
        "tags",
        "sizes",
        "stock",
        "similar",
    ]
    pieces += [str(n) for n in range(10, 100)]
    tokens = [b"<end>", *(bytes([b]) for b in range(256)), *(piece.encode() for piece in pieces)]
    return mw.Vocabulary.from_bytes(tokens, eos=0)


def llama(size: int, width: int, layers: int, positions: int = 4096, **options: Any) -> Any:
    """Return a model that knows nothing yet."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=size, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=layers,
        num_attention_heads=4, max_position_embeddings=positions, bos_token_id=None, eos_token_id=0, pad_token_id=0,
        **options,
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config)
    return model.eval()


def train(model: Any, vocab: mw.Vocabulary, steps: int, device: str) -> float:
    """Train a model on documents; return its last loss a token."""
    rng = random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    model.to(device).train()
    loss = torch.zeros(())
    for _ in track(range(steps), "training", transient=True):
        texts = [json.dumps(document(rng), separators=SEPARATORS) for _ in range(16)]
        rows = [[10, *vocab.encode(text), 0][:160] for text in texts]
        width = max(map(len, rows))
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=device)
        sizes = torch.tensor([len(row) for row in rows], device=device)
        labels = ids.masked_fill(torch.arange(width, device=device) >= sizes[:, None], -100)
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval()
    return loss.item()


class Counted(TransformersReader):
    """A reader that counts the passes of its model, the tokens these read, and the entries that its cache has had."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.reset()

    def reset(self) -> None:
        self.calls = self.fed = self.entries = 0

    def extend(self, tokens: Any, cache: Any, lengths: Any, at: Any, sees: Any = None) -> Any:
        self.calls += 1
        self.fed += int(np.prod(tokens.shape))
        out = super().extend(tokens, cache, lengths, at, sees)
        self.entries = max(self.entries, int(out[1].get_seq_length()) * len(lengths))
        return out


def stepping(reader: Counted, prompt: list[int]) -> Callable[..., Any]:
    """Return the step of `sample_unbiased` for a reader: one token a call, after the prompt."""

    def step(tokens: Any, cache: Any, t: int) -> Any:
        batch = tokens.shape[0]
        given = torch.tensor([prompt] * batch, device=tokens.device) if t == 0 else tokens[:, None]
        lengths = np.full(batch, 0 if t == 0 else len(prompt) + t - 1)
        columns = np.full((batch, 1), given.shape[1] - 1)
        logits, held = reader.extend(given, holder.get("cache") if t else None, lengths, columns)
        holder["cache"] = held
        return logits[:, 0], None

    holder: dict[str, Any] = {}
    return step


def timed(work: Callable[[], Any], device: str) -> tuple[Any, float]:
    """Return what something returns, and its seconds."""
    begin = time.perf_counter()
    out = work()
    if device != "cpu":
        torch.cuda.synchronize()
    return out, time.perf_counter() - begin


# ------------------------------------------------------------------------------------------------------- parts


def sampling(large: Any, small: Any, vocab: mw.Vocabulary, device: str, rounds: int) -> list[Record]:
    """Sample documents in every way, 4 at once, in turn; return calls, tokens read and time by way."""
    table = mw.compile_json_schema(SCHEMA, vocab, whitespace=SEPARATORS, depth=8)
    dev = torch_ops.to_device(table, device, distances=True)
    target, draft = Counted(large), Counted(small)
    batch, most = 4, 200
    options: Record = {"ops": torch_ops, "prompts": [[10]] * batch, "max_tokens": most}

    def jumping(seed: torch.Generator) -> Any:
        return sample_jumping(target, table, seed, vocabulary=vocab, **options)

    def speculating(branches: tuple[int, ...], jumps: bool) -> Callable[[torch.Generator], Any]:
        way: Record = {"table": table, "vocabulary": vocab} if jumps else {}
        where = None if jumps else dev
        return lambda seed: speculative_sample(target, draft, where, seed, branches=branches, **way, **options)

    ways = {
        "one token a call": speculating((), False),
        "jump-forward": jumping,
        "speculation, chain of 4": speculating((1, 1, 1, 1), False),
        "speculation, chain of 8": speculating((1,) * 8, False),
        "speculation, tree (2, 2, 1, 1)": speculating((2, 2, 1, 1), False),
        "speculation, chain of 4, and jumps": speculating((1, 1, 1, 1), True),
    }
    totals: dict[str, Record] = {name: collections.Counter() for name in ways}
    for i in range(rounds + 1):
        for name, way in ways.items():
            seed = torch.Generator(device).manual_seed(i)
            target.reset()
            draft.reset()
            found, seconds = timed(partial(way, seed), device)
            if i == 0:  # warm
                continue
            total = totals[name]
            tokens = found.tokens.reshape(batch, -1).tolist()
            for row in tokens:
                text = vocab.decode(token for token in row if token >= 0)
                assert json.loads(text)["name"] is not None
            total["documents"] += batch
            total["tokens"] += int((found.tokens >= 0).sum())
            total["bytes"] += sum(len(vocab.decode(token for token in row if token >= 0)) for row in tokens)
            total["calls"] += target.calls
            total["draft_calls"] += draft.calls
            total["fed"] += target.fed
            total["seconds"] += seconds
            total["entries"] = max(total["entries"], target.entries)
            if hasattr(found, "tried"):
                total["tried"] += int(found.tried.sum())
                total["accepted"] += int(found.accepted.sum())
    return [{"way": name, "batch": batch, "rounds": rounds, **total} for name, total in totals.items()]


def unbiased(large: Any, vocab: mw.Vocabulary, device: str, batch: int) -> list[Record]:
    """Draw names of a word and a noun, half of all such, without masking's bias: how many candidates that takes."""
    number = {token: i for i, token in enumerate(vocab.tokens)}
    pairs = [(number[word.encode()], number[f" {name}".encode()]) for word in WORDS for name in NAMES]
    table = mw.compile_sids(pairs[::2], vocab_size=vocab.size)
    dev = torch_ops.to_device(table, device)
    reader = Counted(large)
    prompt = [10, *vocab.encode('{"name": "')]
    out = []
    for candidates in (1, 2, 4, 8, 16):
        seed = torch.Generator(device).manual_seed(0)
        step = stepping(reader, prompt)
        draw = partial(sample_unbiased, step, None, dev, seed, ops=torch_ops, batch=batch, candidates=candidates)
        found, seconds = timed(partial(draw, max_tokens=2), device)
        out.append({
            "candidates": candidates, "batch": batch, "seconds": seconds,
            "taken": float(found.candidates.float().mean()),
            "accepted_share": float((found.accepted >= 0).float().mean()),
        })  # fmt: skip
    return out


def beams(device: str, quick: bool) -> list[Record]:
    """Beam search over semantic IDs with a cache for each beam, and with one for all."""
    model = llama(500, 128, 4, initializer_range=0.3).to(device)
    generator = torch.Generator().manual_seed(0)
    out = []
    for length in (64, 256) if quick else (64, 512, 2048):
        ids = torch.randint(1, 500, (1, length), generator=generator).to(device)
        for width in (3, 9, 15):
            times: dict[str, list[float]] = {"tree": [], "copies": []}
            for _ in range(2 if quick else 4):
                search = partial(tree_beam_search, model, ids, beams=width, max_new_tokens=16, collect=4)
                tree, seconds = timed(search, device)
                times["tree"].append(seconds)
                plain, seconds = timed(partial(model.generate, ids, num_beams=width, max_new_tokens=16), device)
                times["copies"].append(seconds)
                assert torch.equal(tree.sequences, plain)
            found = tree.entries
            pairs = zip(times["copies"][1:], times["tree"][1:], strict=True)
            out.append({
                "prompt": length, "beams": width, "tree_entries": found.tree, "copies_entries": found.copies,
                "tree_s": float(np.median(times["tree"][1:])), "copies_s": float(np.median(times["copies"][1:])),
                "times": float(np.median([copies / tree for copies, tree in pairs])),
            })  # fmt: skip
    return out


def _all_logits(hidden: Any, weight: Any, dev: Any, state: Any) -> Any:
    return torch_ops.mask_logits(dev, hidden @ weight.T, state)


def projections(device: str, quick: bool) -> list[Record]:
    """Time of the allowed rows of an output projection, H = 1,024, 16 rows, against all rows and a mask."""
    out = []
    rng = np.random.default_rng(0)
    for size in (2048, 32_768) if quick else (2048, 32_768, 131_072):
        weight = torch.randn(size, 1024, device=device)
        hidden = torch.randn(16, 1024, device=device)
        for allowed in (8, 64, 512):
            first = rng.integers(0, size, (40, 1))
            second = np.concatenate([rng.choice(size, (1, allowed), replace=False) for _ in first])
            sids = np.stack([np.repeat(first[:, 0], allowed), second.reshape(-1)], axis=1)
            dev = torch_ops.to_device(mw.compile_sids(sids, vocab_size=size), device)
            state = torch_ops.advance(dev, torch_ops.start(dev, 16), torch.from_numpy(first[:16, 0]).to(device))
            work = {
                "allowed": partial(allowed_logits, hidden, weight, dev, state, 1, ops=torch_ops),
                "all": partial(_all_logits, hidden, weight, dev, state),
            }
            times: dict[str, list[float]] = {name: [] for name in work}
            for _ in range(15):
                for name, each in work.items():
                    times[name].append(timed(each, device)[1])
            ratios = [b / a for a, b in zip(times["allowed"][3:], times["all"][3:], strict=True)]
            out.append({
                "vocabulary": size, "allowed": allowed, "times": float(np.median(ratios)),
                **{f"{name}_us": 1e6 * float(np.median(values[3:])) for name, values in times.items()},
            })  # fmt: skip
    return out


def families(path: Path, most: int) -> list[Record]:
    """How much of real documents is forced under their schemas, by family, and what that saves."""
    tokenizer = peers.tekken()
    vocab = mw.Vocabulary.from_bytes(
        tokenizer.tokens, eos=tokenizer.eos, special=tokenizer.special, encode=tokenizer.encode
    )
    seen: collections.Counter[str] = collections.Counter()
    totals: dict[tuple[str, str], collections.Counter[str]] = {}
    for case in track(list(read(path)), "families", transient=True):
        seen[case["group"]] += 1
        if seen[case["group"]] > most:
            continue
        for form in ("separators given", "any indentation"):
            whitespace: Whitespace = "spaced" if form == "separators given" else "flexible"
            try:
                table = mw.compile_json_schema(case["schema"], vocab, whitespace=whitespace)
            except mw.errors.ConstraintError:
                continue
            for test in case["tests"]:
                text = json.dumps(test["data"], ensure_ascii=False).encode("utf-8", "surrogatepass")
                try:
                    found = count_forced(mw.Matcher(table, vocab), text) if test["valid"] else None
                except ValueError:  # one that the table refuses
                    found = None
                if found is not None:
                    total = totals.setdefault((case["group"], form), collections.Counter())
                    total.update(texts=1, tokens=found.tokens, forced=found.forced, calls=found.calls)
    return [{"family": family, "form": form, **total} for (family, form), total in sorted(totals.items())]


# ------------------------------------------------------------------------------------------------------- reporting


def report(results: Record) -> str:
    """Return what was measured as tables."""
    about = "Made by `python -m benchmarks.suites.decode --data FILE`; what it ran on is in `decode.json`."
    lines = ["# Decoders", "", about]

    def table(text: str, *columns: str) -> None:
        lines.extend(("", text, "", row(columns), row(["---"] * len(columns))))

    def row(cells: Iterable[str]) -> str:
        return f"| {' | '.join(cells)} |"

    first, loss = results["sampling"][0], results["loss"]
    table(
        f"Documents of one schema, {first['batch']} at once, by a Llama of 4 layers trained on such (loss a token "
        f"{loss['large']:.2f}); drafts by one of 1 layer ({loss['small']:.2f}). All are valid JSON of the schema. "
        "Calls are those of the large model for one batch, and for 100 bytes of one document.",
        "way", "calls", "for 100 bytes", "draft calls", "tokens read", "cache entries", "accepted", "ms for 100 bytes",
    )  # fmt: skip
    for each in results["sampling"]:
        hundred, rounds = each["bytes"] / each["batch"] / 100, each["rounds"]
        rate = f"{each['accepted'] / each['tried']:.2f}" if each.get("tried") else ""
        lines.append(row((
            each["way"], f"{each['calls'] / rounds:.0f}", f"{each['calls'] / hundred:.1f}",
            f"{each['draft_calls'] / rounds:.0f}", f"{each['fed'] / rounds:.0f}", f"{each['entries']:,}", rate,
            f"{1e3 * each['seconds'] / hundred:.0f}",
        )))  # fmt: skip
    table(
        "Unbiased sampling of one of 48 names: candidates drawn at once, and how many it takes on average.",
        "at once", "taken", "one of the first accepted", "seconds for 64",
    )  # fmt: skip
    for each in results["unbiased"]:
        share = f"{100 * each['accepted_share']:.0f} %"
        lines.append(row((str(each["candidates"]), f"{each['taken']:.1f}", share, f"{each['seconds']:.2f}")))
    table(
        "Beam search, 16 tokens, Llama of 4 layers: one cache for all beams against one for each; results are equal.",
        "prompt", "beams", "entries", "copies have", "fewer", "time", "copies take", "faster",
    )  # fmt: skip
    for each in results["beams"]:
        entries, copies = each["tree_entries"], each["copies_entries"]
        lines.append(row((
            f"{each['prompt']:,}", str(each["beams"]), f"{entries:,}", f"{copies:,}", f"{copies / entries:.1f}",
            f"{each['tree_s']:.2f} s", f"{each['copies_s']:.2f} s", f"{each['times']:.1f}",
        )))  # fmt: skip
    table(
        "Only the allowed rows of an output projection, H = 1,024, 16 rows, against all rows and a mask.",
        "vocabulary", "allowed", "time", "all", "faster",
    )  # fmt: skip
    lines += [
        row((
            f"{each['vocabulary']:,}", str(each["allowed"]), f"{each['allowed_us']:,.0f} us",
            f"{each['all_us']:,.0f} us", f"{each['times']:.2f}",
        ))
        for each in results["projections"]
    ]  # fmt: skip
    if "families" in results:
        forms = ("separators given", "any indentation")
        table(
            "Tokens of real documents that are forced, in the tokenizer's own segmentation, by family of schemas.",
            "family", "documents", *(f"forced, {form}" for form in forms),
        )  # fmt: skip
        by: dict[str, dict[str, Record]] = {}
        for each in results["families"]:
            by.setdefault(each["family"], {})[each["form"]] = each
        everything = {
            form: {
                name: sum(family[form][name] for family in by.values() if form in family)
                for name in ("texts", "tokens", "forced")
            }
            for form in forms
        }
        for family, found in [("all", everything), *by.items()]:
            shares = [f"{100 * found[f]['forced'] / found[f]['tokens']:.0f} %" if f in found else "" for f in forms]
            lines.append(row((family, str(max(each["texts"] for each in found.values())), *shares)))
    lines += ["", "![Calls, entries and gains](decode.png)", ""]
    return "\n".join(lines)


def plot(results: Record, path: Path) -> None:
    """Draw calls by way, entries by beams, and the gain of computing only allowed logits."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(15, 4))
    rows = results["sampling"][::-1]
    left.barh([row["way"] for row in rows], [row["batch"] * row["calls"] / (row["bytes"] / 100) for row in rows])
    left.set_xlabel("calls of the model for 100 bytes")
    for length in sorted({row["prompt"] for row in results["beams"]}):
        some = [row for row in results["beams"] if row["prompt"] == length]
        ratio = [row["copies_entries"] / row["tree_entries"] for row in some]
        middle.plot([row["beams"] for row in some], ratio, marker="o", label=f"prompt of {length:,}")
    middle.set_xlabel("beams")
    middle.set_ylabel("cache entries of copies / of one tree")
    middle.legend()
    for size in sorted({row["vocabulary"] for row in results["projections"]}):
        some = [row for row in results["projections"] if row["vocabulary"] == size]
        right.loglog(
            [row["allowed"] for row in some], [row["times"] for row in some], marker="o", label=f"V = {size:,}"
        )
    right.axhline(1, color="grey", linewidth=0.5)
    right.set_xlabel("tokens allowed")
    right.set_ylabel("all logits / allowed logits, time")
    right.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Measure, and write results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--quick", action="store_true", help="a look at each part; nothing is written")
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)  # models this small are faster so
    vocab = vocabulary()
    large, small = llama(vocab.size, 128, 4), llama(vocab.size, 64, 1)
    steps = 30 if options.quick else 400
    results: Record = {
        "loss": {
            "large": train(large, vocab, steps, options.device),
            "small": train(small, vocab, steps, options.device),
        },
        "sampling": sampling(large, small, vocab, options.device, 1 if options.quick else 10),
        "unbiased": unbiased(large, vocab, options.device, 64),
        "beams": beams(options.device, options.quick),
        "projections": projections(options.device, options.quick),
    }
    if options.data is not None:
        results["families"] = families(options.data, 2 if options.quick else 60)
    text = report(results)
    print(text)
    if not options.quick:
        name = "decode" if options.device == "cpu" else f"decode-{options.device}"
        write_json(RESULTS / f"{name}.json", results)
        (RESULTS / f"{name}.md").write_text(text.replace("decode.png", f"{name}.png"))
        plot(results, RESULTS / f"{name}.png")


if __name__ == "__main__":
    main()
