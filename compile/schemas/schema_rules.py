"""`SchemaRules`: the rules of a lazy machine that reads the JSON texts of a schema's values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...automata.alphabet import Alphabet, Spelling, utf8_alphabet
from ...automata.budget import Meter
from ...automata.formulas import Formula, Kind
from ...errors import RegexError, SchemaError
from ...lazy.machine.rules import CALL, DEAD, KEEP, POP
from ...vocabulary.vocabulary import Vocabulary
from ..json_schema.approximations import Approximations
from ..json_schema.layout import Layout
from ..json_schema.request import Request, wrong_pattern
from .content_sets import Groups, content_alphabets, content_sets, nodes_in
from .counted_members import before_others, counting_formulas, is_counted, without_counts
from .frame_reader import STRUCTURE, FrameReader
from .gated_nodes import SchemaNode, schema_node
from .key_trie import KeyBlock
from .levels import Frame, Frames, Indentation, Key, Number, Object, OtherKey, Text
from .object_shape import ObjectShape
from .open_values import OpenValues
from .schema_formulas import SchemaFormulas
from .short_texts import ShortTexts
from .state_atoms import Count, PatternState, counted
from .witness import Witness

MOST_READING = 3000  # frames that the searches for a row look at, while a text waits for it


def schema_rules(
    asked: Request, vocabulary: Vocabulary, meter: Meter, approximations: Approximations | None = None,
    most: int | None = None,
) -> SchemaRules:  # fmt: skip
    """Return the rules of a request.

    vocabulary: whose tokens texts are read by. approximations: notes what stays unenforced. most: states that the
    search for a first text looks at, None for any number.

    Raises the errors of `compile_json_schema`, SchemaError if no value is in the schema, and TakesLongError.
    """
    found = approximations or Approximations(asked.allowed)
    try:
        node = schema_node(asked.contents, approximations=found, documents=asked.documents, meter=meter)
        return SchemaRules(node, asked.layout, vocabulary, meter, asked.any_order, most)
    except RegexError as error:
        raise wrong_pattern(error, asked.contents) from error


class SchemaRules:
    """The `Rules` of a schema: a state is a frame, and those inside which it stands are to go on in.

    What may stand in several places is read in the same states. The depth of texts is not limited: frames that are open
    are no part of states.
    """

    end = 1

    def __init__(
        self, schema: SchemaNode, layout: Layout, vocabulary: Vocabulary, meter: Meter, any_order: bool = False,
        most: int | None = None,
    ) -> None:  # fmt: skip
        of_strings = content_alphabets(content_sets(schema, meter), layout.ascii)
        structure = utf8_alphabet(tuple([((ord(c), ord(c)),) for c in STRUCTURE]))
        self.alphabets: Sequence[Alphabet] = (structure, *[alphabet for alphabet, _ in of_strings])
        self._groups = [groups for _, groups in of_strings]
        self.calls: list[tuple[int, tuple[int, ...]]] = []
        self._any_order, self._is_reading = any_order, False
        self._alike: dict[int, int] = {}
        self._most = vocabulary.most_of((1 << 64) - 1) + 2  # characters that no token has
        self._call_of: dict[tuple[int, ...], int] = {}
        self._schema = SchemaFormulas(schema.gates, meter)
        self._values = OpenValues(self._schema, layout, vocabulary, any_order)
        points = self._groups[-1].points
        characters = [chr(point) for point in points if point >= 0]
        self._witness = Witness(self._values, characters)
        self._short = ShortTexts(self._values, self._witness, characters)
        self._reader = FrameReader(self._values, self._witness)
        start = self._values.start(schema.node)
        self._witness.limit(most)
        if not self._witness.can_end(start):
            raise SchemaError("the schema matches no value", "")
        self._check_counts(schema)
        self._frames: list[Frame] = [start, Frame(self._schema.everything, ())]
        self._numbers = {frame: number for number, frame in enumerate(self._frames)}
        self._cells = 0

    def _check_counts(self, whole: SchemaNode) -> None:
        """Raise SchemaError where members are counted that cannot be told apart; see `OpenValues.check_counts`."""
        if not any(map(is_counted, nodes_in(whole))):
            return
        for node, formula in counting_formulas(self._schema, whole, self._witness):
            frames = self._values.settled(Frame(formula, (Object((node,), 0, 0, "{"),)))
            if frames is None:
                continue
            last = frames[-1].levels[-1]
            assert type(last) is Object
            shape = last.shape
            assert isinstance(shape, ObjectShape)
            for left, came in before_others(self._schema, formula):
                others = Object(shape, shape.all_keys if self._any_order else shape.end, 0, "k")
                if self._witness.can_end(Frame(without_counts(self._schema, left), (others,))):
                    self._values.check_counts(came, Frame(left, (others,)))

    def begin_reading(self, meter: Meter) -> None:
        """Have a meter limit what is made from now on, and leave out what cannot soon be shown to be completed."""
        self._schema.meter, self._is_reading = meter, True
        self._values.begin_reading()

    @property
    def left_out(self) -> int:
        """How many ways on were left out of rows, as it was not seen in time whether texts complete them."""
        return self._witness.left_out + self._values.left_out

    @property
    def nbytes(self) -> int:
        """About how many bytes all that was made takes."""
        return self._schema.nbytes + 200 * (len(self._frames) + len(self._witness)) + 8 * self._cells

    def alphabet_of(self, state: int) -> int:
        """Return the place of a state's alphabet in `alphabets`."""
        frame = self._frames[state]
        last = frame.levels[-1] if frame.levels else None
        if type(last) is Text:
            assert last.spelling is not None
            return last.spelling
        if type(last) is Key:
            return self._values.key_spelling(frame)
        return Spelling.NEEDED if type(last) is OtherKey else 0

    def accepts(self, state: int) -> bool:
        """Return whether a text may end in a state if nothing is open."""
        levels = self._frames[state].levels
        if not levels:
            return True
        return len(levels) == 1 and type(levels[0]) is Number and self._values.ends(self._frames[state])

    def bytes_to_end(self, state: int) -> int | None:
        """Return the bytes of `text_to_end`; None where there is none."""
        self._witness.limit(MOST_READING)
        return self._short.length(self._frames[state])

    def text_to_end(self, state: int) -> bytes | None:
        """Return a short text that ends the frame of a state; None where a search found none soon."""
        self._witness.limit(MOST_READING)
        return self._short.text(self._frames[state])

    def alike(self, state: int) -> int:
        """Return a state with the same mask: within a string of which one thing is asked, counts need not be exact."""
        found = self._alike.get(state)
        if found is None:
            found = state
            formula, levels = self._frames[state]
            if len(levels) == 1 and type(levels[0]) is Text:
                clamped = self._clamped(formula)
                if clamped is not formula:
                    found = self._state(Frame(clamped, levels))
            self._alike[state] = found
        return found

    def counts(self, state: int) -> tuple[int, int] | None:
        """Return where characters of a string lead that are counted, and how many may follow, else None."""
        formula, levels = self._frames[state]
        if len(levels) != 1 or type(levels[0]) is not Text or formula.kind is not Kind.ATOM:
            return None
        atom = formula.atom
        found = atom.counts(self._schema.formulas) if type(atom) in (Count, PatternState) else None
        return None if found is None else (self._state(Frame(found[0], levels)), found[1])

    def _clamped(self, formula: Formula) -> Formula:
        """Return a formula that reads the same tokens: it counts no further than a token has characters."""
        atom, f = formula.atom, self._schema.formulas
        if type(atom) is Count and formula.kind is Kind.ATOM:
            most = self._most
            low, high = atom.args
            return counted(f, min(low, most), None if high is None or high >= most else high)
        if type(atom) is PatternState and formula.kind is Kind.ATOM:
            return atom.alike(f)
        return formula

    def row(self, state: int) -> list[int]:
        """Return where each class of its alphabet leads from a state."""
        frame = self._frames[state]
        which = self.alphabet_of(state)
        before = self._witness.left_out
        self._witness.limit(MOST_READING if self._is_reading else None)
        row = self._in_string(frame, self._groups[which - 1]) if which else self._outside(frame)
        if self._witness.left_out > before and row.count(DEAD) == len(row):
            self._witness.limit(None)  # some text goes on: whoever waits for it waits longer, and is not left without
            row = self._in_string(frame, self._groups[which - 1]) if which else self._outside(frame)
        self._cells += len(row)
        return row

    def rows(self, state: int) -> tuple[list[int], NDArray[np.int32]]:
        """Return a state and its row; of a state within a key, those of all that the key may go on with."""
        frame = self._frames[state]
        last = frame.levels[-1] if frame.levels else None
        block = last.branch.block if type(last) is Key and not last.other.is_open else None
        if block is None:
            return [state], np.array([self.row(state)], np.int32)
        states, codes = self._in_block(frame, block)
        self._cells += codes.size
        return states, codes

    def _in_block(self, frame: Frame, block: KeyBlock) -> tuple[list[int], NDArray[np.int32]]:
        """Return the states within a key, that of a frame first, and their rows, where undeclared keys are alike."""
        values, formula, outer = self._values, frame.formula, frame.levels[:-1]
        key = frame.levels[-1]
        assert type(key) is Key
        most = MOST_READING if self._is_reading else None
        while True:
            before = self._witness.left_out
            begun = values.other_begun(frame)
            other, other_end = self._searched(begun, most), self._searched(values.key_ended(begun), most)
            behind = [self._searched(values.key_by_place(frame, place), most) for place in block.keys]
            live = block.towards([code != DEAD for code in behind])
            live |= other != DEAD or other_end != DEAD
            if live[0] or self._witness.left_out == before:
                break
            most = None  # some text goes on: whoever waits for it waits longer, and is not left without
        live[0] = True
        places = np.full(len(live), DEAD, np.int32)
        for n in np.flatnonzero(live).tolist():
            branch = Key(key.shape, key.place, key.foreign, block.branches[n], key.other)
            places[n] = self._state(Frame(formula, (*outer, branch)))
        groups = self._groups[values.key_spelling(frame) - 1]
        codes = block.rows(places, behind, other, other_end, groups)[live]
        return places[live].tolist(), codes

    def _searched(self, frame: Frame | None, most: int | None) -> int:
        """Return the code of a row that leads to a frame. most: frames that the search for its end looks at."""
        self._witness.limit(most)
        return self._code(self._witness.frames(frame))

    def _outside(self, frame: Frame) -> list[int]:
        alphabet, reader = self.alphabets[0], self._reader
        row = [DEAD] * alphabet.classes
        if not frame.levels:
            return row
        is_line = type(frame.levels[0]) is Indentation
        is_number = type(frame.levels[0]) is Number
        for character in STRUCTURE:
            code = self._code(reader.read(frame, character))
            if code == DEAD and ((is_line and character > " ") or (is_number and reader.ends_number(frame, character))):
                code = KEEP
            row[alphabet.class_of(character)] = code
        return row

    def _in_string(self, frame: Frame, groups: Groups) -> list[int]:
        values, witness, last = self._values, self._witness, frame.levels[-1]
        if type(last) is Key:
            return self._in_key(frame, last, groups)
        row = []
        for point in groups.points:
            to: Frame | None
            if point >= 0:
                to = values.read(frame, chr(point))
            else:
                to = values.key_ended(frame) if type(last) is OtherKey else values.ended(frame)
            row.append(self._code(witness.frames(to)))
        return groups.spread(row)

    def _in_key(self, frame: Frame, key: Key, groups: Groups) -> list[int]:
        values, witness = self._values, self._witness
        of_others = {self._schema.nothing: DEAD}  # by what is left of the formula for an undeclared key
        row = []
        for point in groups.points:
            character = "" if point < 0 else chr(point)
            if point < 0 or character in key.branch.branches:
                to = values.key_read(frame, character) if character else values.key_ended(frame)
                row.append(self._code(witness.frames(to)))
                continue
            other = values.other_read(frame, character)
            code = of_others.get(other)
            if code is None:
                code = of_others[other] = self._code(witness.frames(values.key_read(frame, character)))
            row.append(code)
        return groups.spread(row)

    def _code(self, frames: Frames | None) -> int:
        """Return the code of a row that leads to frames."""
        if frames is None:
            return DEAD
        if not frames[-1].levels:  # what has ended
            frames = frames[:-1]
            if not frames:
                return POP
        states = tuple(map(self._state, frames))
        if len(states) == 1:
            return states[0]
        call = self._call_of.get(states)
        if call is None:
            call = self._call_of[states] = len(self.calls)
            self.calls.append((states[-1], states[:-1]))
        return CALL - call

    def _state(self, frame: Frame) -> int:
        number = self._numbers.get(frame)
        if number is None:
            number = self._numbers[frame] = len(self._frames)
            self._frames.append(frame)
        return number
