"""The header: where a lazy machine keeps the arrays that its kernels read.

It works like the header of a lazy pushdown machine, see `lazy.pushdown.header`. Kernels take names from this file.
"""

from __future__ import annotations

DONE = -1
"""In place of a state whose row must be made first."""
NEEDS_SITES = -2
"""In place of a state: the token closes more frames than were passed."""
REFUSED = -3
"""In place of a state: the token is not allowed."""
NO_ROW = -1
"""In place of where a row begins: it has not been made."""
NO_BOUND = -1
"""In place of bytes to an end: they have not been found. In place of the room for an end: it is not limited."""
UNKNOWN = 1 << 30
"""In place of bytes to an end: no search has found one. It may be added to itself."""
OF_ENDS = 3
"""Numbers of what is known of a state's end: the bytes in which its frame can end, from between characters and from
within one, and the groups of characters that lead to the state itself, and not to one of its likes."""
OF_FRAME = 3
"""Numbers of an open frame: the state to go on in, the frame below, and the bytes in which these two and all others
below can end."""

# Places of arrays in the header, two numbers each
(
    # alphabets: (A, 256) where each byte leads between characters; (N, 256) the same within a character, where row 0
    # means nothing; (N, W) the classes in reach within a character
    AT_ROOT, AT_INNER, AT_REACH,
    # by state: its alphabet; where its row begins in the cells; (S, W) the classes that lead on; the groups of
    # characters that lead back to it; (S, OF_ENDS) what is known of its end
    AT_ALPHABET, AT_ROW, AT_LIVE, AT_LOOPS, AT_ENDS,
    # the cells of all rows; where each call begins among the states that calls name, and these
    AT_CELLS, AT_CALL_START, AT_CALL_STATES,
    # the trie of all tokens, see `vocabulary.Branches`
    AT_BYTE, AT_NODE, AT_TOKEN,
    # memory to work in: the levels of a walk; open frames, a state to go on in and the frame below for each; the frames
    # that a token opened
    AT_LEVELS, AT_FRAMES, AT_PUSHED,
) = range(0, 34, 2)  # fmt: skip
# Places of numbers: rows of AT_INNER, W, levels of the trie, the state of a text that is complete, words of a mask; of
# the walk at hand its level; its home, the groups of characters that lead to there and that stay there, and how many of
# the topmost levels are at home, see `walk`; how many frames are noted, the most open frames that it looked at, the
# nodes that it read, and the bytes of the farthest end
(
    NUM_INNER, NUM_WORDS, NUM_LEVELS, END, MASK_WORDS, LEVEL, HOME, TO_HOME, IN_HOME, AT_HOME, NUM_FRAMES, LOOKED, WORK,
    FARTHEST, HEADER,
) = range(34, 49)  # fmt: skip
OF_LEVEL = 6
"""Numbers of a level: the next node and the node after the last, the state, the place within a character, the innermost
open frame, and how many frames were noted."""
