"""One sequence that an engine constrains, and whether it accepts a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Session(NamedTuple):
    """One sequence being written."""

    mask: Callable[[], Any]  # compute which tokens may come next
    commit: Callable[[int], Any]  # take a token; False or ValueError where the engine refuses it
    bits: Callable[[], Any]  # the mask that was computed: uint32 (ceil(V / 32),), bit i of word w for token 32 w + i
    fault: Callable[[], str]  # why the engine gave up on the sequence, or nothing


def no_fault() -> str:
    """Return nothing: the engine reports every failure where it happens."""
    return ""


class FaultError(Exception):
    """An engine gave up on a sequence, or refused a token that its own mask allows."""


def allows(bits: Any, token: int) -> bool:
    """Return whether a mask allows a token."""
    return bool(int(bits[token >> 5]) >> (token & 31) & 1)


def accepts(session: Session, tokens: Sequence[int], eos: int) -> tuple[bool, bool]:
    """Return whether a new session takes all tokens and then EOS, and whether some mask forbade a token it then took.

    Where one text must follow, an engine may allow only the tokens that its tokenizer would cut it into. The text can
    still be written then, so it counts as accepted; that not every way to write it is allowed is the second answer.
    """
    narrow = False
    for token in tokens:
        session.mask()
        if fault := session.fault():
            raise FaultError(fault)
        allowed = allows(session.bits(), token)
        try:
            taken = session.commit(token) is not False
        except ValueError:
            taken = False
        if allowed and not taken:
            raise FaultError(f"refuses token {token}, which its mask allows")
        if not taken:
            return False, narrow
        narrow |= not allowed
    session.mask()
    if fault := session.fault():
        raise FaultError(fault)
    return allows(session.bits(), eos), narrow
