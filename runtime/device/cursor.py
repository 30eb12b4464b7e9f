"""The operations on constraints, written once for all kinds of constraints and all libraries of arrays.

A cursor is a kind of constraint on a device. It tells a few things of states, and every operation is made of these:

- `start`, `accepting` and `distance` are operations themselves;
- `allowed` is the mask of what states allow, at any depths;
- `offers` has scores and tokens of what states at one depth allow;
- `follow` is where tokens lead;
- `first_offers` lists the first tokens that states allow.

Where a kind has a faster way it overrides `mask_words`, `masked`, `reached`, `select_at_once`, or an operation.
`Kinds` finds the cursor of what `to_device` returned.

Tables know one end token, `eos`. Operations take the other ends for `eos` on the way in, and copy what is said of
`eos` to them on the way out. Where continuations are ranked, to end is one continuation: `eos` has the probability of
all ends together, and no other end is ranked beside it, as it would be the same sequence once more.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, NamedTuple, NoReturn, ParamSpec, TypeVar, cast

from . import likelihood
from .backend import Array, Backend, Cache, Offer, Placed, States
from .checks import (
    check_floating,
    check_has_end,
    check_level,
    check_logits,
    check_rows,
    check_scores,
    check_sids,
    check_tokens,
    is_end,
    not_put,
)
from .device_table import Candidates, Selection, State

P = ParamSpec("P")
Result = TypeVar("Result")

_NONE = -float("inf")


class Chosen(NamedTuple):
    """Continuations that were chosen among what states offer."""

    before: States  # the states before
    of_parents: Callable[[Array], Array]  # gathers an array of these states: (n, ..)
    tokens: Array  # (n,) 0 where there is none
    edges: Callable[[], Array] | None  # the edges (n,) of an `Offer` that has some
    alive: Array  # (n,) which there are
    level: int

    def states(self) -> States:
        """Return the states (n,) that they continue."""
        return type(self.before)(*map(self.of_parents, self.before))


class Cursor:
    """A kind of constraint on the arrays of one library. `dev` is from `to_device`, B is a batch, V a vocabulary."""

    has: tuple[str, ...] | None = None
    """The names of the operations that a kind has; None: all."""

    refusal = ""
    """Why a kind does not have others, and what to do: follows the name of one."""

    def __init__(self, ops: Backend, kinds: Kinds) -> None:
        self.ops, self.kinds = ops, kinds

    # ------------------------------------------------------------------------------ what a kind tells of its states

    def start(self, dev: Placed, batch: int) -> States:
        """Return the state of `batch` sequences with nothing written yet."""
        raise NotImplementedError

    def accepting(self, dev: Placed, state: States) -> Array:
        """Return whether each sequence may end where it stands: bool (B,)."""
        raise NotImplementedError

    def distance(self, dev: Placed, state: States) -> Array:
        """Return the tokens (B,) in which each sequence can be complete, at least one of which is always allowed.

        A table must have been put with distances.
        """
        raise NotImplementedError

    def anchor(self, dev: Placed) -> Array:
        """Return an array of integers that is where the constraint is, of the type of its tokens."""
        raise NotImplementedError

    def check_state(self, dev: Placed, state: States) -> None:
        """Raise ValueError for a state of another constraint."""

    def allowed(self, dev: Placed, state: States, remaining: Array | None) -> Array:
        """Return a mask (n, V or more) of what states allow, ends among them: -1 or True where it is, else 0."""
        raise NotImplementedError

    def offers(self, dev: Placed, x: Array, state: States, level: int, normalized: bool) -> Offer:
        """Return x (n, V') of what states at one depth offer; a state of another depth may lack some or all of it.

        normalized: x has log-probabilities, else logits, of which some that are not allowed may be NaN or inf.
        """
        raise NotImplementedError

    def follow(self, dev: Placed, state: States, tokens: Array, level: int | None, alive: Array | None) -> States:
        """Return the states (n, k) after one more token (n, k) of states (n,), the dead one where there is none.

        level: the depth of all states, where it is known. alive: (n, k) which of the tokens there are, all allowed;
        None: any integers, of which those that are not allowed lead to the dead state.
        """
        raise NotImplementedError

    def first_offers(self, dev: Placed, state: States, width: int, remaining: Array | None) -> tuple[Array, Array]:
        """Return the first `width` tokens (n, width) that states offer, ends aside, and which of them are allowed."""
        raise NotImplementedError

    # ---------------------------------------------------------------------------------- what a kind may do faster

    def mask_words(self, dev: Placed, state: States, remaining: Array | None) -> Array:
        """Return what states allow, packed: (n, ceil(V / 32))."""
        return self.ops.pack(self.allowed(dev, state, remaining)[:, : dev.vocab_size])

    def masked(self, dev: Placed, x: Array, state: States, remaining: Array | None = None) -> Array:
        """Return x (n, V') with -inf at every token that is not allowed."""
        return self.ops.keep(x, self.allowed(dev, state, remaining), dev.vocab_size)

    def mask_in_place(self, dev: Placed, x: Array, state: States, remaining: Array | None) -> Array:
        """Return x (n, V'), whose memory is written to, with -inf at every token that is not allowed."""
        x[...] = self.masked(dev, x, state, remaining)
        return x

    def masked_at(self, dev: Placed, x: Array, state: States, level: int, in_place: bool) -> Array:
        """Return what `masked` does, where all states are at one depth or dead."""
        if dev.eos is not None:
            return self.mask_in_place(dev, x, state, None) if in_place else self.masked(dev, x, state)
        scores, tokens, _ = self.offers(dev, x, state, level, False)
        if tokens is None:
            scores = scores[:, : dev.vocab_size]
            if not in_place and x.shape[1] == dev.vocab_size:
                return scores
            tokens = self.ops.arange(dev.vocab_size, like=state.node) + state.node[:, None] * 0
        return self.alone(x, tokens, scores != _NONE, in_place)

    def alone(self, x: Array, tokens: Array, allowed: Array, in_place: bool = False, ordered: bool = False) -> Array:
        """Return x (n, V') with -inf but at the tokens (n, w) that are allowed.

        ordered: the first of a row is allowed if any is.
        """
        ops = self.ops
        if ordered:
            some, first = allowed[:, :1], tokens[:, :1]
        else:
            place = ops.where(allowed, 1, 0).argmax(-1)[:, None]
            some, first = ops.take(allowed, place), ops.take(tokens, place)
        tokens = ops.where(allowed, tokens, ops.where(some, first, 0))  # in the place of others, once more
        kept = ops.where(some, ops.take(x, tokens), _NONE)
        if not in_place:
            return ops.scatter(ops.lowest(x), tokens, kept)
        x[...] = _NONE
        return ops.scatter(x, tokens, kept)

    def reached(self, dev: Placed, chosen: Chosen) -> States:
        """Return the states (n,) that chosen continuations lead to."""
        found = self.follow(dev, chosen.states(), chosen.tokens[:, None], chosen.level, chosen.alive[:, None])
        return _first_column(found)

    def select_at_once(
        self, dev: Placed, logits: Array, state: States, scores: Array, beams: int, level: int, renormalize: bool
    ) -> Selection | None:
        """Return what `select` does where a kernel does all of it, else None."""
        return None

    # ------------------------------------------------------------------------------------------------- operations

    def first_tokens(self, dev: Placed, cache: Cache, count: int, token: int) -> Array:
        """Return `count` copies of the token a model is first fed with, where the constraint or else the cache is."""
        return self.ops.zeros((count,), like=self.anchor(dev)) + token

    def bitmask(self, dev: Placed, state: States, remaining: Array | None = None) -> Array:
        """Return the tokens allowed in each state, packed: (B, ceil(V / 32)), token 32 * w + i is bit i of word w.

        remaining: (B,) how many tokens may still be written, ends aside. Then only tokens are allowed from whose target
        an end can be reached within the others, so that there is always one in reach.
        """
        self.check_state(dev, state)
        words = self.mask_words(dev, state, remaining)
        if not dev.other_ends:
            return words
        may_end = (words[:, dev.eos >> 5] >> (dev.eos & 31)) & 1
        found: dict[int, Array] = {}
        for end in dev.other_ends:
            found[end >> 5] = found.get(end >> 5, words[:, end >> 5]) | (may_end << (end & 31))
        values = [value[:, None] for value in found.values()]
        return self.ops.scatter(words, self._columns([*found], state.node), self._beside(values))

    def mask_logits(
        self, dev: Placed, logits: Array, state: States, remaining: Array | None = None, level: int | None = None
    ) -> Array:
        """Return logits (B, V') with -inf at every token that is not allowed; what is allowed is left untouched.

        remaining: as for `bitmask`. level: a depth at which all states must be that are not dead: only as many edges
        as a state there can have are read.
        """
        return self._mask(False, dev, logits, state, remaining, level)

    def mask_logits_(
        self, dev: Placed, logits: Array, state: States, remaining: Array | None = None, level: int | None = None
    ) -> Array:
        """Mask logits (B, V') as `mask_logits` does, in place, and return them."""
        return self._mask(True, dev, logits, state, remaining, level)

    def _mask(
        self, in_place: bool, dev: Placed, logits: Array, state: States, remaining: Array | None, level: int | None
    ) -> Array:
        self._check(dev, logits, state)
        values = []
        if dev.other_ends:
            may_end = self.accepting(dev, state)[:, None]
            values = [self.ops.where(may_end, logits[:, end : end + 1], _NONE) for end in dev.other_ends]
        if level is not None:
            check_level(level)
        if level is not None and remaining is None:
            masked = self.masked_at(dev, logits, state, level, in_place)
        elif in_place:
            masked = self.mask_in_place(dev, logits, state, remaining)
        else:
            masked = self.masked(dev, logits, state, remaining)
        if not values:
            return masked
        return self.ops.scatter(masked, self._columns(dev.other_ends, state.node), self._beside(values))

    def candidates(self, dev: Placed, logits: Array, state: States, width: int, level: int | None = None) -> Candidates:
        """Return the `width` best allowed continuations of each row, to end among them as `eos`, best first.

        Of several ends it is `eos` that is among them, with the probability of all ends together.
        Scores are log-probabilities under the full softmax. Unused slots score -inf and lead to the dead state. level:
        a depth at which all the states must be: only as many edges as a state there can have are read, and where a
        state is of another depth some of its tokens are left out.
        """
        ops = self.ops
        self._check(dev, logits, state)
        if level is not None:
            check_level(level)
        log_probs = ops.log_softmax(self._with_one_end(dev, logits, state))
        offer = None if level is None else self.offers(dev, log_probs, state, level, True)
        if offer is None or (offer.tokens is None and dev.eos is not None):
            offer = Offer(self.masked(dev, log_probs, state), None)
        elif dev.eos is not None:
            last = ops.where(self.accepting(dev, state), log_probs[:, dev.eos], _NONE)
            offer = self._with_end(offer, last, dev.eos)
        best, at = ops.top_k(ops.without_nan(offer.scores), width)
        alive = best > _NONE
        at = ops.integers(at, state.node)
        tokens = ops.where(alive, at if offer.tokens is None else ops.take(offer.tokens, at), 0)
        return Candidates(best, tokens, self.follow(dev, state, tokens, level, alive))

    def select(
        self,
        dev: Placed,
        logits: Array,
        state: States,
        scores: Array,
        beams: int,
        level: int,
        renormalize: bool = False,
    ) -> Selection:
        """Return the `beams` best continuations over all beams of each batch element, ends aside.

        logits: (B * m, V). state: (B * m,), all at depth `level`. scores: (B, m) totals so far, to which
        log-probabilities under the full softmax are added; renormalize: under that of the allowed tokens alone. A row
        of logits that has no distribution (NaN, +inf, all -inf) has no continuations. dev None: no constraint.
        """
        self._check(dev, logits, state)
        check_scores(scores.shape, logits.shape[0])
        check_level(level)
        ops, (batch, m) = self.ops, scores.shape
        logits = self._with_one_end(dev, logits, state)
        found = self.select_at_once(dev, logits, state, scores, beams, level, renormalize)
        if found is not None:
            return found
        offer = self._scored(dev, logits, state, level, renormalize)
        x, token, edges = offer
        if m == beams and token is not None and token.shape[1] == 1:  # nothing branches: beams go on in their places
            best = ops.without_nan(scores + x.reshape(batch, m))
            parents, tokens, place = None, token.reshape(batch, m), None
        else:
            best, place = ops.top_of_beams(x.reshape(batch, m, -1), scores, beams)
            place = ops.integers(place, state.node)
            parents = place // x.shape[1]
            tokens = place - parents * x.shape[1] if token is None else ops.take(token.reshape(batch, -1), place)

        rows: list[Array] = []  # that are continued, where somebody asks

        def of_parents(array: Array) -> Array:
            if parents is None:
                return array
            if not rows:
                rows.append((parents + m * ops.arange(batch, like=parents)[:, None]).reshape(-1))
            return ops.gather(array, rows[0])

        def edges_chosen() -> Array:
            return (edges if place is None else ops.take(edges.reshape(batch, -1), place)).reshape(-1)

        alive = best > _NONE
        tokens = ops.where(alive, tokens, 0)
        follows = None if edges is None else edges_chosen
        chosen = Chosen(state, of_parents, tokens.reshape(-1), follows, alive.reshape(-1), level)
        return Selection(best, parents, tokens, self.reached(dev, chosen))

    def _scored(self, dev: Placed, logits: Array, state: States, level: int, renormalize: bool) -> Offer:
        """Return the log-probabilities of what states offer: -inf, or NaN, in a row that has no distribution."""
        ops = self.ops
        if not renormalize:
            return ops.softmax_of(logits, lambda x, normalized: self.offers(dev, x, state, level, normalized))
        logits = ops.widen(logits)
        offer = self.offers(dev, logits, state, level, False)
        mass = ops.logsumexp(offer.scores)[:, None]
        if dev.eos is not None:
            last = ops.where(self.accepting(dev, state), logits[:, dev.eos], _NONE)
            mass = ops.logsumexp(ops.concatenate([mass, last[:, None]], 1))[:, None]
        sound = (mass > _NONE) & (mass < float("inf"))
        return offer._replace(scores=ops.where(sound, offer.scores - ops.where(sound, mass, 0.0), _NONE))

    def end_scores(self, dev: Placed, logits: Array, state: States, renormalize: bool = False) -> Array:
        """Return the log-probability of EOS (B,) where a sequence may end, else -inf; `renormalize` as in `select`.

        Of several ends it is the probability that the model ends by any of them.
        """
        check_has_end(dev)
        self._check(dev, logits, state)
        logits = self._with_one_end(dev, logits, state)
        last = self.ops.log_softmax(self.masked(dev, logits, state) if renormalize else logits)[:, dev.eos]
        return self.ops.where(self.accepting(dev, state) & (last <= float("inf")), last, _NONE)

    def advance(self, dev: Placed, state: States, tokens: Array) -> States:
        """Return the state after one more token (B,) each; the dead state where it was not allowed."""
        check_tokens(state.node.shape[0], tokens.shape, self.ops.is_integral(tokens), tokens.dtype)
        self.check_state(dev, state)
        tokens = self.ops.integers(tokens, state.node)  # a narrow type would wrap what it is compared with
        if dev.other_ends:
            tokens = self.ops.where(is_end(dev, tokens), dev.eos, tokens)
        return self.after(dev, state, tokens)

    def after(self, dev: Placed, state: States, tokens: Array) -> States:
        """Return the state after any one token (n,) each; no other ends are among them."""
        return _first_column(self.follow(dev, state, tokens[:, None], None, None))

    def log_mass(self, dev: Placed, logits: Array, state: States) -> Array:
        """Return log P(allowed) (B,): how much of the full softmax the allowed tokens hold."""
        self._check(dev, logits, state)
        log_probs = self.ops.log_softmax(self._with_one_end(dev, logits, state))
        return self.ops.logsumexp(self.masked(dev, log_probs, state))

    def log_probs(
        self,
        dev: Placed,
        logits: Array,
        tokens: Array,
        state: States = None,
        *,
        remaining: Array | None = None,
        renormalize: bool = True,
        by_position: bool = False,
    ) -> Array:
        """Return the log-probability of each sequence (B,), as `numpy_ops.log_probs` says, with derivatives by logits.

        Beside the logits it takes one copy of them, or where a state allows at most a quarter of the vocabulary, and
        that is known before, one of these alone.
        """
        by_token = likelihood.log_probs(self, dev, logits, tokens, state, remaining, renormalize)
        return by_token if by_position else by_token.sum(-1)

    def contains(self, dev: Placed, sids: Array) -> Array:
        """Return whether each row of sids (N, L) is in the set: bool (N,).

        Filters do not count, but of a live set: there a row must be kept, too.
        """
        check_sids(sids.shape)
        state = self.start(dev, sids.shape[0])
        for t in range(sids.shape[1]):
            state = self.advance(dev, state, sids[:, t])
        return self.accepting(dev, state)

    def allowed_tokens(
        self, dev: Placed, state: States, width: int, remaining: Array | None = None
    ) -> tuple[Array, Array]:
        """Return the first `width` tokens that each state allows, and ends: (B, W), and which of them there are.

        W is `width`, and one more for each end token; these have the last columns. Tokens ascend; 0 where there are
        fewer. remaining: as for `bitmask`. width: at most what any state has, known of tries and of graphs without
        masks or calls.
        """
        ops = self.ops
        self.check_state(dev, state)
        token, allowed = self.first_offers(dev, state, width, remaining)
        if dev.eos is not None:
            zero, may_end = token[:, :1] * 0, self.accepting(dev, state)[:, None]
            token = ops.concatenate([token, *[zero + end for end in dev.ends]], 1)
            allowed = ops.concatenate([allowed, *[may_end] * len(dev.ends)], 1)
        return ops.where(allowed, token, 0), allowed

    # ------------------------------------------------------------------------------------------------------- parts

    def walk(self, dev: Placed, state: States, tokens: Array) -> tuple[Any, Array]:
        """Return states before all tokens (B * T,) and nodes after them (B, T); a negative token leaves a state."""
        assert self.kinds.walk is not None, "numpy has its own `log_probs`"
        return self.kinds.walk(self.step_or_stay, dev, state, tokens)

    def step_or_stay(self, dev: Placed, state: States, tokens: Array) -> States:
        """Return the state after tokens (B,); a negative token leaves it."""
        stays = tokens < 0
        return type(state)(
            *(
                self.ops.where(stays.reshape(-1, *(1 for _ in new.shape[1:])), old, new)
                for old, new in zip(state, self.advance(dev, state, tokens), strict=True)
            )
        )

    def _check(self, dev: Placed, logits: Array, state: States) -> None:
        """Raise TypeError, ValueError or VocabularyMismatchError unless there is a row of logits for each state."""
        check_floating(self.ops.is_floating(logits), logits.dtype)
        check_logits(dev.vocab_size, tuple(logits.shape))
        check_rows(logits.shape[0], state.node.shape)
        self.check_state(dev, state)

    def _columns(self, at: Any, like: Array) -> Array:
        """Return column numbers for each row: (B, k) of integers (B,)."""
        zero = self.ops.zeros((like.shape[0], 1), like=like)
        return self._beside([zero + column for column in at])

    def _beside(self, columns: list[Array]) -> Array:
        return self.ops.concatenate(columns, 1) if len(columns) > 1 else columns[0]

    def _with_one_end(self, dev: Placed, logits: Array, state: States) -> Array:
        """Return logits (B, V') in which `eos` has the weight of all ends, and others have none."""
        if not dev.other_ends:
            return logits
        ops = self.ops
        ends = ops.concatenate([ops.widen(logits[:, end : end + 1]) for end in dev.ends], 1)
        values = ops.concatenate([ops.logsumexp(ends)[:, None], ops.lowest(ends[:, 1:])], 1)
        return ops.scatter(logits + ops.zeros((1, 1), like=logits), self._columns(dev.ends, state.node), values)

    def _with_end(self, offer: Offer, last: Array, end: int) -> Offer:
        """Return an offer (n, w + 1) with an end of score `last` (n,) where it belongs in the order of tokens.

        Of equal scores the first is chosen, which is then the lowest token.
        """
        ops, (scores, token, _) = self.ops, offer
        width = scores.shape[1]
        goes_before = (scores > _NONE) & (token < end)
        place = ops.running_max(ops.where(goes_before, ops.arange(width, like=token) + 1, 0))[:, -1:]
        column = ops.arange(width + 1, like=token)

        def inserted(own: Array, others: Array) -> Array:
            before, behind = ops.concatenate([others, own], 1), ops.concatenate([own, others], 1)
            return ops.where(column < place, before, ops.where(column == place, own, behind))

        return Offer(inserted(last[:, None], scores), inserted(token[:, :1] * 0 + end, token))


class Unconstrained(Cursor):
    """No constraint: every token is allowed, and no sequence ends."""

    has = ("first_tokens", "select")
    refusal = "needs a constraint: dev is None"

    def select(
        self, dev: None, logits: Array, state: States, scores: Array, beams: int, level: int, renormalize: bool = False
    ) -> Selection:
        """Return what `Cursor.select` does where all tokens are allowed: both softmaxes are one."""
        ops, (batch, m), width = self.ops, scores.shape, logits.shape[1]
        x = ops.softmax_of(logits, lambda x, _: Offer(x, None)).scores
        best, at = ops.top_of_beams(x.reshape(batch, m, width), scores, beams)
        node = ops.zeros((batch * beams,), like=state.node)
        return Selection(best, at // width, ops.where(best > _NONE, at % width, 0), State(node))


def _first_column(state: States) -> States:
    """Return the states (n,) of states (n, 1)."""
    return type(state)(*(array[:, 0] for array in state))


def _method(cursor: Cursor, name: str) -> Callable[..., Any]:
    """Return a method of a cursor; of one that does not have the operation, one that says so."""
    if cursor.has is None or name in cursor.has:
        method: Callable[..., Any] = getattr(cursor, name)
        return method

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise ValueError(f"{name} {cursor.refusal}")

    return refuse


class Kinds:
    """The cursors of one library of arrays, by the class of what `to_device` returns."""

    def __init__(
        self, ops: Backend, kinds: Mapping[type, type[Cursor]], walk: Callable[..., tuple[Any, Array]] | None = None
    ) -> None:
        self.walk = walk  # (step, dev, state (B,), tokens (B, T)) -> states before (B * T,), nodes after (B, T)
        self._cursors = {kind: cursor(ops, self) for kind, cursor in kinds.items()}

    def __contains__(self, dev: Placed) -> bool:
        """Return whether there is a cursor of what `to_device` returned."""
        return type(dev) in self._cursors

    def of(self, dev: Placed) -> Cursor:
        """Return the cursor of what `to_device` returned. Raises TypeError for anything else."""
        cursor = self._cursors.get(type(dev))
        if cursor is None:
            raise not_put(dev)
        return cursor

    def operation(self, operation: Callable[Concatenate[Any, Any, P], Result]) -> Callable[Concatenate[Any, P], Result]:
        """Return a method of `Cursor` as a function of what `to_device` returned."""
        name = operation.__name__
        methods = {kind: _method(cursor, name) for kind, cursor in self._cursors.items()}

        @functools.wraps(operation, assigned=("__name__", "__qualname__", "__doc__"))
        def run(dev: Placed, *args: P.args, **options: P.kwargs) -> Result:
            method = methods.get(type(dev))
            if method is None:
                raise not_put(dev)
            result: Result = method(dev, *args, **options)
            return result

        return cast(Callable[Concatenate[Any, P], Result], run)
