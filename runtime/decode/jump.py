"""Jump-forward: what must follow is appended without asking the model, and read by it together with what comes next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from ...errors import ConstraintError
from ...table.constraint import Constraint
from ..device.backend import Array, Cache, Operations, Random
from ..device.checks import check_logits
from ..device.on_demand import has_lengths
from ..host.matcher import Matcher, Spelling
from .reader import Reader, check_prompts, padded
from .sampling import FilterOptions, _filters, _finite, _split, choose


class Jumped(NamedTuple):
    """Sequences sampled with jumps; rows that are not `valid` hold nothing."""

    tokens: Array  # (B, L), -1 past a sequence's end and where not valid
    lengths: Array  # (B,), EOS not counted
    log_probs: Array  # (B,) of what was drawn, under the distribution it was drawn from; forced tokens add nothing
    valid: Array  # bool (B,)
    matchers: tuple[Matcher, ...]  # (B,) at the end of each sequence; `state` is for the constraint's `input_rows`
    forced: NDArray[np.int64]  # (B,) tokens that were not drawn
    calls: int  # of the model
    fed: int  # tokens that the model read, prompts included, over all rows


class Forced(NamedTuple):
    """What writing one text takes."""

    tokens: int  # written, EOS not counted
    forced: int  # of these, without the model
    calls: int  # of the model, if each writes one token; that for EOS counts, where it is a choice


def take_forced(matcher: Matcher) -> list[int]:
    """Take what must follow and return its tokens; [] where there is a choice.

    With a vocabulary that is what `Matcher.forced_tokens` says, again and again, in the tokenizer's own segmentation.
    Where only one token is allowed that one is taken as well, also without a vocabulary. EOS is never taken.
    """
    taken: list[int] = []
    vocabulary = matcher._vocabulary
    while True:
        mask = matcher.mask()
        words = np.flatnonzero(mask)
        if not len(words):
            return taken
        low, high = int(mask[words[0]]), int(mask[words[-1]])
        first = 32 * int(words[0]) + (low & -low).bit_length() - 1
        last = 32 * int(words[-1]) + high.bit_length() - 1
        if first == last:
            if first == matcher.table.eos:
                return taken
            tokens = [first]
        elif vocabulary is None or vocabulary.tokens[first][:1] != vocabulary.tokens[last][:1]:
            return taken  # all forced text begins with one byte; asking for it takes ten times as long as this
        else:
            tokens = matcher.forced_tokens()
            if not tokens:
                return taken
        for token in tokens:
            matcher.advance(token)
        taken += tokens


def rejoin(matcher: Matcher, vocabulary: Spelling) -> list[int] | None:
    """Write the last token anew together with the forced text behind it, as the tokenizer writes the two.

    Return the tokens now in its place, all taken; None, with nothing changed, where it writes the last token as it is,
    or no text is forced, or the tokens it would write are not allowed.
    """
    last = matcher._tokens[-1]
    before = vocabulary.tokens[last]
    try:
        text = before + matcher.forced_text()
        text.decode()
        tokens = vocabulary.encode(text)
    except (UnicodeDecodeError, ConstraintError):
        return None  # a tokenizer does not say how it splits part of a character
    if tokens[0] == last:
        return None
    matcher.rollback(1)
    taken: list[int] = []
    while len(taken) < len(tokens) and matcher.advance(tokens[len(taken)]):
        taken.append(tokens[len(taken)])
    if taken and not matcher.is_finished:
        matcher.rollback(1)  # what follows is open, and may be joined with it
        taken.pop()
    if sum(len(vocabulary.tokens[token]) for token in taken) < len(before):
        matcher.rollback(len(taken))
        matcher.advance(last)
        return None
    return taken


def count_forced(matcher: Matcher, text: bytes) -> Forced:
    """Return how many tokens it takes to write a text with jumps, and how many of them are forced.

    What is not forced is written in the tokenizer's own segmentation of the text from there on.
    The matcher, which has a vocabulary, goes along. Raises ValueError where the text is not allowed.
    """
    vocabulary = matcher._spelling()
    at = forced = written = 0
    own: dict[int, int] = {}  # the tokenizer's token at each place where one begins
    while True:
        taken = take_forced(matcher)
        spelt = b"".join(vocabulary.tokens[token] for token in taken)
        if not text.startswith(spelt, at):
            raise ValueError(f"at byte {at}, {text[at : at + 20]!r} is not allowed: {spelt[:20]!r} must follow")
        at, forced, written = at + len(spelt), forced + len(taken), written + len(taken)
        if at == len(text):
            break
        if at not in own:
            place, own = at, {}
            for token in vocabulary.encode(text[at:]):
                own[place] = token
                place += len(vocabulary.tokens[token])
        if not matcher.advance(own[at]):
            raise ValueError(f"at byte {at}, {text[at : at + 20]!r} is not allowed")
        at, written = at + len(vocabulary.tokens[own[at]]), written + 1
    if not matcher.is_accepting:
        raise ValueError(f"the text is not complete at its end, byte {at}")
    return Forced(written, forced, written - forced + (not matcher.is_finished))


def sample_jumping(
    model: Reader,
    table: Constraint | Sequence[Constraint],
    random: Random,
    *,
    ops: Operations,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    vocabulary: Spelling | None = None,
    distances: bool = True,
    retokenise: bool = False,
    **options: Unpack[FilterOptions],
) -> Jumped:
    """Return a sequence of the table for each prompt, each choice drawn as `sample` does; the rest is not drawn.

    model: see `Reader`. table: one, or one for each row, sorted matrices too; a `LazyTable` is read as far as the texts
    come, unless there are distances. prompts: B lists of tokens, each with one at least. vocabulary: what the table was
    compiled for; without it only what is a single token is forced, as where semantic IDs do not branch. max_tokens: the
    most tokens of a sequence, EOS not counted. distances: what could not be complete by then is not allowed; else it is
    flagged in `valid`.

    What the model drew is never changed, so that each token has the masked distribution given those before it, or is
    forced. A forced text is segmented as the tokenizer does behind a token's end; where it would have joined the token
    drawn last with what is forced, the two stay apart. retokenise: then this last token, which the model has not read
    yet, is written anew together with the forced text (`rejoin`): the same text, without any more to read.
    Tokens before that stay as they were drawn either way.

    options: see `FilterOptions`. random: as in `sample`; of uniform numbers, (calls, B, 2); not needed at temperature
    0. One read on the host for each call: what was drawn.

    Raises TypeError, ValueError, VocabularyMismatchError.
    """
    xp = ops.arrays
    filters = _filters(**options)
    written = check_prompts(prompts, max_tokens, model)
    matchers = row_matchers(table, vocabulary, len(written), max_tokens if distances else None)
    if retokenise and vocabulary is None:
        raise ValueError("retokenise=True needs to know how tokens are spelt: pass vocabulary=")
    starts = [len(prompt) for prompt in written]
    rows = range(len(written))
    lengths = np.zeros(len(written), np.int64)  # what the model has read
    forced, calls, fed = np.zeros_like(lengths), 0, 0
    done, live = np.zeros(len(written), bool), np.ones(len(written), bool)
    cache: Cache = None
    log_probs = None

    def follow(row: int, tokens: list[int], free: int) -> None:
        """Append tokens, the last `free` of them forced, and see whether the sequence is complete."""
        written[row] += tokens
        forced[row] += free
        full = len(written[row]) - starts[row] > max_tokens
        done[row] = not full and matchers[row].is_finished
        live[row] = not full and not done[row]

    for row in rows:
        own = take_forced(matchers[row])
        follow(row, own, len(own))
    while live.any():
        pending = [written[row][lengths[row] :] if live[row] else [] for row in rows]
        counts = np.array([len(tokens) for tokens in pending])
        logits, cache = model.extend(padded(pending), cache, lengths, np.maximum(counts - 1, 0)[:, None])
        calls, fed = calls + 1, fed + int(counts.sum())
        lengths += counts
        now, random = _split(ops, random) if filters.temperature else (None, random)
        x, sound = _tempered(ops, logits[:, 0], matchers, live, filters.temperature)
        at, drawn, _, valid = choose(ops, x, now, filters, sound)
        log_probs = xp.zeros((len(written),), like=drawn) if log_probs is None else log_probs
        log_probs = log_probs + xp.where(valid & xp.to_device(live, drawn), drawn, 0.0)
        for row, token in enumerate(xp.to_host(xp.where(valid, at, -1)).tolist()):
            if not live[row]:
                continue
            matcher = matchers[row]
            if token < 0 or (token not in matcher.table.ends and len(written[row]) - starts[row] == max_tokens):
                live[row] = False  # no distribution, or too long
                continue
            matcher.advance(token)
            if token in matcher.table.ends:
                matcher.rollback(1)
                live[row], done[row] = False, True
                continue
            joined = rejoin(matcher, vocabulary) if retokenise and vocabulary is not None else None
            own = [token] if joined is None else joined
            own += take_forced(matcher)
            follow(row, own, len(own) - 1)
    like = ops.first_tokens(None, None, len(written), 0) / 1 if log_probs is None else log_probs  # nothing was drawn
    tokens, sizes = sequences([written[row][starts[row] :] for row in rows], done, max_tokens)
    valid = xp.to_device(done, like)
    return Jumped(
        xp.to_device(tokens, like),
        xp.to_device(sizes, like),
        xp.where(valid, like, -float("inf")),
        valid,
        tuple(matchers),
        np.where(done, forced, 0),
        calls,
        fed,
    )


def _tempered(
    ops: Operations, logits: Array, matchers: list[Matcher], live: NDArray[np.bool_], temperature: float
) -> tuple[Any, Any]:
    """Return logits (B, V) by temperature, -inf where not allowed, and which rows (B,) have a distribution."""
    xp = ops.arrays
    check_logits(max(matcher.table.vocab_size for matcher in matchers), logits.shape)
    x = logits / (xp.zeros((1, 1), like=logits) + (temperature or 1.0))
    sound = _finite(xp.logsumexp(x))
    return xp.where(xp.to_device(allowed(matchers, live, x.shape[1]), x), x, -float("inf")), sound


def row_matchers(
    table: Constraint | Sequence[Constraint], vocabulary: Spelling | None, batch: int, budget: int | None
) -> list[Matcher]:
    """Return a matcher for each row; TypeError, ValueError, VocabularyMismatchError."""
    if not isinstance(table, Constraint | Sequence):
        raise TypeError(
            "table must be a TransitionTable or a SortedMatrix, or a list of one for each row, not "
            f"{type(table).__name__}: forced tokens are found on the host, so pass the constraint itself, and not what "
            "ops.to_device makes of it"
        )
    tables = [table] * batch if isinstance(table, Constraint) else list(table)
    if len(tables) != batch:
        raise ValueError(
            f"there are {len(tables)} tables and {batch} prompts: one table for all, or one a row, is needed"
        )
    for one in {id(one): one for one in tables}.values():
        if isinstance(one, Constraint) and one.eos is None and one.fixed_length is None:
            raise ValueError(
                "the table has no EOS and its sequences have different lengths, so that nothing says how probable it "
                "is that one ends: compile it with eos="
            )
        if budget is not None and isinstance(one, Constraint) and not has_lengths(one):
            raise ConstraintError(
                "this grammar has no table, or none within its budget, so nobody knows how many tokens an end is away, "
                "and a sequence may not be complete within max_tokens: pass distances=False, and look at `valid`"
            )
    return [Matcher(one, vocabulary, max_tokens=budget) for one in tables]


def allowed(matchers: Sequence[Matcher | None], live: Array, width: int) -> NDArray[np.bool_]:
    """Return which of `width` tokens each matcher allows, (B, width): none where there is none, or it is not live."""
    out = np.zeros((len(matchers), width), bool)
    for row, matcher, going in zip(out, matchers, live, strict=True):
        if matcher is not None and going:
            bits = np.unpackbits(matcher.mask().astype("<u4").view(np.uint8), bitorder="little")
            size = matcher.table.vocab_size
            row[:size] = bits[:size]
    return out


def sequences(
    written: Sequence[Sequence[int]], done: NDArray[np.bool_], length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return tokens (B, length), -1 behind the end and of rows that are not done, and how many each row has."""
    tokens = np.full((len(written), length), -1, np.int64)
    sizes = np.zeros(len(written), np.int64)
    for row, own in enumerate(written):
        if done[row]:
            sizes[row] = len(own)
            tokens[row, : len(own)] = own
    return tokens, sizes
