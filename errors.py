"""Every error maskwright raises on purpose, and how its fields become words.

    MaskwrightError
    ├── ConstraintError(ValueError)       a constraint that cannot be compiled as given
    │   ├── RegexError                    a pattern that is malformed or not supported, with a caret
    │   ├── SchemaError                   a JSON Schema that is malformed, matches nothing or is not supported
    │   ├── GrammarError                  a grammar that is malformed, derives nothing or is not supported, with a caret
    │   ├── NoTableError                  a grammar of which there is no finite table, when something needs arrays
    │   ├── DeltaFullError                a live set or catalogue without room for what is inserted
    │   └── BudgetError                   a compilation that reached a limit of states, seconds or bytes
    ├── TableError(ValueError)            arrays that do not form a transition table
    │   └── TableFileError                a file that is truncated, foreign, tampered with or of another version
    ├── ArenaError(ValueError)            a table for which an arena has no room, or was not made
    ├── VocabularyMismatchError(ValueError)   a table and a vocabulary, or logits, that do not belong together
    ├── DataError(ValueError)             a file of data that is missing or malformed
    ├── KernelError(RuntimeError)         a kernel for which there is no machine code
    ├── ProcessError(RuntimeError)        a process that ended before its work was done
    └── MissingDependencyError(ImportError)   an optional package that is not installed

An error says what is wrong, where, and what to do about it, each in fields of its own. `str(error)` words the fields
for Python. Another front end has a `Wording` of its own and calls `error.worded(wording)`; none reads a message.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from numbers import Integral
from typing import Any, ClassVar, NamedTuple, Self, assert_never, get_args

# -------------------------------------------------------------------------------------------- what is not enforced


class Unenforced(NamedTuple):
    """A keyword of a schema that a caller let go unenforced, where no automaton can enforce it exactly."""

    pointer: str  # JSON Pointer of the keyword
    keyword: str
    approximation: str  # what is accepted

    def __str__(self) -> str:
        return f"{self.pointer} is not enforced: {self.approximation} may be written"


class UnenforcedWarning(UserWarning):
    """A table was compiled with allow="all", and does not enforce some keywords; `unenforced` lists them."""

    def __init__(self, unenforced: Iterable[Unenforced]) -> None:
        self.unenforced = tuple(unenforced)
        super().__init__(self.unenforced)

    def __str__(self) -> str:
        return "; ".join(map(str, self.unenforced))


# --------------------------------------------------------------------------------------------------------- remedies


@dataclass(frozen=True)
class Advice:
    """A sentence that every front end says alike. Each {} in it stands for an argument, named as the front end does."""

    kind: ClassVar[str] = "advice"
    text: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class RaiseBudget:
    """Raise limits of the `Budget`, or do something else."""

    kind: ClassVar[str] = "raise_budget"
    limits: tuple[str, ...]
    otherwise: str


@dataclass(frozen=True)
class RaiseCapacity:
    """Make the arena with a larger `Capacity`: of `name`, at least so much if that is known."""

    kind: ClassVar[str] = "raise_capacity"
    name: str
    least: int | None = None


@dataclass(frozen=True)
class AllowKeyword:
    """Name a keyword of a schema that need not be enforced; values that break it are then accepted."""

    kind: ClassVar[str] = "allow_keyword"
    keyword: str
    approximation: str


@dataclass(frozen=True)
class AddDocument:
    """Give the schema that a reference names by its URI."""

    kind: ClassVar[str] = "add_document"
    uri: str


@dataclass(frozen=True)
class KeepOrder:
    """Let members come in the schema's order, and not in any order."""

    kind: ClassVar[str] = "keep_order"


@dataclass(frozen=True)
class ReadOnDemand:
    """Follow the grammar state by state, without a table."""

    kind: ClassVar[str] = "read_on_demand"


Remedy = Advice | RaiseBudget | RaiseCapacity | AllowKeyword | AddDocument | KeepOrder | ReadOnDemand
"""What a reader of an error can do about it."""


_MOST_SHOWN = 200  # characters of a pointer in a message


def shown_pointer(pointer: str) -> str:
    """Return a pointer as messages show it: of a long one, how it begins and ends. The field `pointer` has it whole."""
    half = _MOST_SHOWN // 2
    return pointer if len(pointer) <= _MOST_SHOWN else f"{pointer[:half]} ... {pointer[-half:]}"


class Wording:
    """How a front end words the fields of an error. This is Python's; others override what they say otherwise."""

    def argument(self, name: str) -> str:
        """Return how a user writes the name of an argument."""
        return name

    def place(self, pointer: str | None, line: int | None, column: int | None) -> str:
        """Return where in a constraint an error is, "" where there is nothing to say."""
        parts = [] if pointer is None else [shown_pointer(pointer) or "/"]
        if line is not None:
            parts.append(f"line {line}, column {column}")
        return ", ".join(parts)

    def remedy(self, remedy: Remedy) -> str:
        """Return a remedy as a sentence without its full stop."""
        match remedy:
            case Advice():
                return self.advice(remedy)
            case RaiseBudget(limits=limits, otherwise=otherwise):
                return f"Raise it with budget=Budget({', '.join(f'{limit}=...' for limit in limits)}), or {otherwise}"
            case RaiseCapacity(name=name, least=None):
                return f"Drop handles, or make it with a larger Capacity({name}=...)"
            case RaiseCapacity(name=name, least=least):
                return f"Make it with Capacity({name}={least})"
            case AllowKeyword(keyword=keyword, approximation=approximation):
                return f'Pass allow=["{keyword}"] to accept {approximation}, or take it out'
            case AddDocument(uri=uri):
                return f"Pass it, documents={{{json.dumps(uri)}: ...}}"
            case KeepOrder():
                return "any_order=True takes far more than any_order=False, where members come in the schema's order"
            case ReadOnDemand():
                return "A Matcher follows it, and to_device() reads it on demand, without max_tokens"
            case _:
                assert_never(remedy)

    def advice(self, advice: Advice) -> str:
        """Return an advice with this front end's names of arguments."""
        return advice.text.format(*map(self.argument, advice.arguments)) if advice.arguments else advice.text


PYTHON = Wording()


# ---------------------------------------------------------------------------------------------------------- errors


class MaskwrightError(Exception):
    """Base of all errors that maskwright raises on purpose; any can be copied and pickled.

    Every error has all fields; one that says nothing of an error is None, "" or ().
    """

    argument: str | None = None  # the argument whose value is wrong: the message goes on after its name
    remedies: tuple[Remedy, ...] = ()
    pointer: str | None = None  # JSON Pointer of the fault, as a URI fragment without '#': "" is the whole
    keyword: str | None = None  # keyword of a schema that is at fault
    position: int | None = None  # index of the character at fault: in a pattern, a grammar or a JSON text
    line: int | None = None  # of that character, from 1
    column: int | None = None
    limit: str | None = None  # name of the limit that was reached
    allowed: float | None = None  # its value
    reached: float | None = None  # how much is needed of it, as far as that is known

    def __init__(self, message: str = "", *, argument: str | None = None, remedies: Iterable[Remedy] = ()) -> None:
        super().__init__(message)
        self.argument, self.remedies = argument, tuple(remedies)

    @property
    def message(self) -> str:
        """What is wrong, without where and without what to do."""
        return str(self.args[0]) if self.args else ""

    @property
    def excerpt(self) -> str:
        """The part of the source that is at fault with a caret under it, "" where there is none to show."""
        return ""

    def summary(self, wording: Wording = PYTHON) -> str:
        """Return what is wrong and what to do, in the words of a front end."""
        said = self.message if self.argument is None else f"{wording.argument(self.argument)} {self.message}"
        return ". ".join([said, *map(wording.remedy, self.remedies)])

    def worded(self, wording: Wording = PYTHON) -> str:
        """Return the whole error in the words of a front end."""
        place = wording.place(self.pointer, self.line, self.column)
        said = f"{place}: {self.summary(wording)}" if place else self.summary(wording)
        return f"{said}\n{self.excerpt}" if self.excerpt else said

    def __str__(self) -> str:
        return self.worded()

    def at(self, pointer: str) -> Self:
        """Return this error with another pointer: that of its place in a larger whole."""
        moved = copy.copy(self)
        moved.pointer = pointer
        return moved

    def reaching(self, limit: str, allowed: float | None = None) -> Self:
        """Return this error with the limit that was reached, and its value."""
        more = copy.copy(self)
        more.limit, more.allowed = limit, allowed
        return more

    def also(self, remedy: Remedy) -> Self:
        """Return this error with one more remedy."""
        more = copy.copy(self)
        more.remedies = (*self.remedies, remedy)
        return more

    def __reduce__(self) -> tuple[Any, ...]:  # as the base has it
        return made_again, (type(self), self.args, self.__dict__)


def made_again(kind: type[MaskwrightError], args: tuple[Any, ...], fields: dict[str, Any]) -> MaskwrightError:
    """Rebuild an error without rerunning its constructor (pickle, copy)."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(fields)
    return error


class ConstraintError(MaskwrightError, ValueError):
    """A constraint that cannot be compiled as given; the message names the row, position or pointer."""

    def __init__(
        self, message: str = "", *, pointer: str | None = None, argument: str | None = None,
        remedies: Iterable[Remedy] = (),
    ) -> None:  # fmt: skip
        super().__init__(message, argument=argument, remedies=remedies)
        self.pointer = pointer


class DeltaFullError(ConstraintError):
    """A live set or catalogue has no room for more sequences until it is compacted; nothing was changed."""


class TableError(MaskwrightError, ValueError):
    """Arrays that do not form a transition table."""


class TableFileError(TableError):
    """A file that is truncated, foreign, tampered with, or of another format version."""


class VocabularyMismatchError(MaskwrightError, ValueError):
    """A table used with a vocabulary, or with logits, that it was not compiled for."""


class ArenaError(MaskwrightError, ValueError):
    """A table for which an arena has no room, or whose parts are wider than the arena was made for.

    `limit` is the field of `Capacity`, `allowed` what the arena has of it, `reached` what the table needs.
    """

    def __init__(
        self, message: str = "", *, limit: str | None = None, allowed: int | None = None, reached: int | None = None,
        remedies: Iterable[Remedy] = (),
    ) -> None:  # fmt: skip
        super().__init__(message, remedies=remedies)
        self.limit, self.allowed, self.reached = limit, _plain(allowed), _plain(reached)


class DataError(MaskwrightError, ValueError):
    """A file of data that is missing or malformed; the message names the file, the line and what to do."""


class MissingDependencyError(MaskwrightError, ImportError):
    """An optional package that a function needs is not installed; the message gives the install command."""


class KernelError(MaskwrightError, RuntimeError):
    """A kernel for which there is no machine code, or no way to make it; the message says how to get it."""


class ProcessError(MaskwrightError, RuntimeError):
    """A process that compiled for this one and ended before its work was done; the message says how it ended."""


class NoTableError(ConstraintError):
    """A grammar of which there is no finite table, where arrays were asked for; it can be read as it is."""

    def __init__(self, message: str = "", *, remedies: Iterable[Remedy] = (ReadOnDemand(),)) -> None:
        super().__init__(message, remedies=remedies)


class BudgetError(ConstraintError):
    """A compilation that reached a limit of its `Budget`.

    `limit` is the field of `Budget`, `allowed` its value, `reached` what the next step needs: states, seconds or bytes.
    """

    def __init__(
        self, message: str = "", *, limit: str | None = None, allowed: float | None = None,
        reached: float | None = None, remedies: Iterable[Remedy] = (),
    ) -> None:  # fmt: skip
        super().__init__(message, remedies=remedies)
        self.limit, self.allowed, self.reached = limit, _plain(allowed), _plain(reached)


def _plain(number: float | None) -> float | None:
    """Return a number, which may be one of numpy's, as JSON can hold it."""
    return number if number is None else int(number) if isinstance(number, Integral) else float(number)


class RegexError(ConstraintError):
    """A regular expression that cannot be compiled; it shows the pattern with a caret under the position."""

    position: int  # index into pattern, 0 to len(pattern)

    def __init__(self, message: str, pattern: str, position: int, *, pointer: str | None = None) -> None:
        super().__init__(message, pointer=pointer)
        self.pattern, self.position = pattern, position

    @property
    def excerpt(self) -> str:
        return _caret(self.pattern, self.position)


class SchemaError(ConstraintError):
    """A JSON Schema that cannot be compiled exactly; `pointer` says which part of it is at fault.

    keyword: the one that `allow` could name, if there is one. position and excerpt: of a fault within a text, such as a
    pattern or malformed JSON.
    """

    pointer: str

    def __init__(
        self, message: str, pointer: str, keyword: str | None = None, *, position: int | None = None,
        excerpt: str = "", remedies: Iterable[Remedy] = (),
    ) -> None:  # fmt: skip
        super().__init__(message, pointer=pointer, remedies=remedies)
        self.keyword, self.position, self._excerpt = keyword, position, excerpt

    @property
    def excerpt(self) -> str:
        return self._excerpt


class GrammarError(ConstraintError):
    """A grammar that cannot be compiled; it has line and column, and shows the line with a caret under the position."""

    position: int  # index into grammar, 0 to len(grammar)
    line: int
    column: int

    def __init__(self, message: str, grammar: str, position: int, *, pointer: str | None = None) -> None:
        super().__init__(message, pointer=pointer)
        self.grammar, self.position = grammar, position
        self.line, self.column = grammar.count("\n", 0, position) + 1, position - self._begin + 1

    @property
    def _begin(self) -> int:
        return self.grammar.rfind("\n", 0, self.position) + 1

    @property
    def excerpt(self) -> str:
        begin = self._begin
        return _caret(self.grammar[begin:].split("\n", 1)[0], self.position - begin)


_EXCERPT = 40  # characters of a pattern shown on either side of a fault


def _caret(pattern: str, position: int) -> str:
    """Return the part of a pattern around a position on one line and a caret under it on the next."""
    low, high = max(0, position - _EXCERPT), position + _EXCERPT

    def shown(text: str) -> str:  # one printable line, however the text is broken up
        return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)

    before = ("..." if low else "") + shown(pattern[low:position])
    after = shown(pattern[position:high]) + ("..." if high < len(pattern) else "")
    return f"    {before}{after}\n    {' ' * len(before)}^"


# ------------------------------------------------------------------------------------------------------------ JSON

_ERRORS = (
    MaskwrightError, ConstraintError, RegexError, SchemaError, GrammarError, NoTableError, BudgetError, DeltaFullError,
    TableError, TableFileError, ArenaError, VocabularyMismatchError, DataError, KernelError, ProcessError,
    MissingDependencyError,
)  # fmt: skip
_REMEDIES: dict[str, Callable[..., Remedy]] = {kind.kind: kind for kind in get_args(Remedy)}


def remedy_to_json(remedy: Remedy) -> dict[str, Any]:
    """Return a remedy's kind and fields.

    >>> remedy_to_json(RaiseCapacity("states", 5))
    {'kind': 'raise_capacity', 'name': 'states', 'least': 5}
    """
    return {"kind": remedy.kind, **asdict(remedy)}


def remedy_from_json(kept: dict[str, Any]) -> Remedy:
    """Return a remedy made again from what `remedy_to_json` returned, lists in place of tuples."""
    fields: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in kept.items()}
    return _REMEDIES[fields.pop("kind")](**fields)


def error_to_json(error: MaskwrightError) -> dict[str, Any]:
    """Return an error as JSON can hold it."""
    fields = {**error.__dict__, "remedies": [remedy_to_json(remedy) for remedy in error.remedies]}
    return {"kind": type(error).__name__, "message": error.message, "fields": fields}


def error_from_json(kept: dict[str, Any]) -> MaskwrightError:
    """Return an error made again from what `error_to_json` returned. Raises KeyError for a kind that there is not."""
    kind = {each.__name__: each for each in _ERRORS}[kept["kind"]]
    fields = {**kept["fields"], "remedies": tuple(remedy_from_json(each) for each in kept["fields"]["remedies"])}
    return made_again(kind, (kept["message"],), fields)
