"""A network: nodes joined by terminals, which are DFAs, and by calls of rules.

A *position* is a node, or a state within a terminal that stands between two nodes. Nothing in the network is empty:
what a node leads to without reading, through rules that derive the empty text as well, is part of the node.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Network:
    """Arrays of a network; C classes of symbols, T states of terminals, Q positions within terminals, N nodes, R rules.

    Symbols are the 256 bytes: special tokens are spelt by some of them. Rules are numbered so that one that is
    called where another begins comes after it, or is in its group. Node 0 ends and does nothing else.
    """

    class_of: NDArray[np.int32]  # (256,)
    transition: NDArray[np.int32]  # (T * C,) the state of the same terminal that a class leads to, or -1
    ends: NDArray[np.uint8]  # (T,) 1 where a terminal may end, 2 where it may go on, 3 for both
    position_state: NDArray[np.int32]  # (Q,) of the terminal
    position_node: NDArray[np.int32]  # (Q,) where its end leads to
    node_final: NDArray[np.uint8]  # (N,) 1 where a rule may end, 2 where it can do nothing else, too
    terminal_start: NDArray[np.int32]  # (N + 1,)
    terminal: NDArray[np.int32]  # the first positions of terminals that a node begins with
    call_start: NDArray[np.int32]  # (N + 1,)
    call_rule: NDArray[np.int32]
    call_node: NDArray[np.int32]  # where a call returns to
    rule_node: NDArray[np.int32]  # (R,) where a rule begins
    rule_group: NDArray[np.int32]  # (R,) rules that are called where each other begin have the same
    start: int  # the node where the whole begins
    rules: tuple[str, ...]  # names
    embeds: bool  # whether a rule stands within itself, with something before it and something after it
    region_node: NDArray[np.int32]  # where what stands within each region begins
    mark: NDArray[np.int32]  # (T,) 2 * region + 1 where one begins, and as much more where it ends; 0 of terminals

    @property
    def classes(self) -> int:
        """The number of classes of symbols."""
        return int(self.class_of.max()) + 1
