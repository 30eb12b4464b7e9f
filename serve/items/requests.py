"""The requests of clients of a server of items."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from ..requests import wrong_value

MOST_ID = 4096  # characters of an id
MOST_IDS = 10_000  # in one list of a request

ItemId = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | Annotated[str, Field(max_length=MOST_ID)]
Ids = Annotated[list[ItemId], Field(max_length=MOST_IDS)]
Expression = Annotated[str, Field(min_length=1, max_length=4096)]
Value = bool | int | float | str | None


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def _given(field: str) -> dict[str, JsonValue]:
    """Return the JSON Schema of objects in which a field has a value."""
    return {"properties": {field: {"not": {"type": "null"}}}, "required": [field]}


class RetrieveRequest(_Model):
    """A question for items."""

    model_config = ConfigDict(json_schema_extra={"anyOf": [_given("prompt"), _given("history")]})

    model: str | None = Field(default=None, description="Name of a model; it may be left out if there is one.")
    catalogue: str | None = Field(default=None, description="Name of a catalogue; it may be left out if there is one.")
    prompt: Annotated[str, Field(max_length=1 << 20)] | Annotated[list[int], Field(max_length=1 << 20)] | None = Field(
        default=None,
        description="What the model reads: text, in which {history} stands for the items of the history, or tokens.",
    )
    history: Ids | None = Field(default=None, description="Ids of items, the latest last.")
    beams: Annotated[int, Field(ge=1)] = Field(default=20, description="Semantic IDs that go on at each step.")
    limit: Annotated[int, Field(ge=1)] = Field(default=10, description="Most items of the answer.")
    filter: Expression | Annotated[list[Expression], Field(max_length=16)] = Field(
        default=[], description="Names of filters or expressions over columns, of which an item passes all."
    )
    deny: Ids = Field(default=[], description="Ids of items that are left out.")
    exclude_history: bool = Field(default=False, description="Whether the items of the history are left out.")
    min_score: float | None = Field(default=None, description="Least score of an item.")
    columns: Annotated[list[str], Field(max_length=256)] | Literal["all"] = Field(
        default=[], description="Names of columns whose values the answer has, or all."
    )
    timeout: Annotated[float, Field(gt=0, le=3600)] | None = Field(
        default=None, description="Seconds after which the request is given up."
    )

    @model_validator(mode="after")
    def _has_something(self) -> RetrieveRequest:
        if self.prompt is None and self.history is None:
            raise wrong_value("send a prompt or a history")
        return self

    @property
    def filters(self) -> list[str]:
        """All filters as a list."""
        return [self.filter] if isinstance(self.filter, str) else self.filter


class Item(_Model):
    """What an item is, as a client puts it."""

    sid: Annotated[list[int], Field(max_length=64)] | None = Field(
        default=None, description="Codes of its semantic ID; left out, an item that is there keeps its own."
    )
    columns: dict[str, Value] = Field(default={}, description="Values of columns; null for one that is missing.")


class Line(Item):
    """One line of a bulk update: an item with its id, or one to delete."""

    id: ItemId
    delete: bool = False

    @model_validator(mode="after")
    def _deletes_alone(self) -> Line:
        if self.delete and (self.sid is not None or self.columns):
            raise wrong_value("an item to delete has an id alone")
        return self


class FoundItem(BaseModel):
    """An item of an answer."""

    id: int | str
    score: float = Field(description="Sum of the log-probabilities of its semantic ID's tokens.")
    sid: list[int]
    columns: dict[str, Any] | None = None


class Note(BaseModel):
    """What an answer says beside its items."""

    code: str
    message: str
    ids: list[int | str] | None = None


class RetrieveAnswer(BaseModel):
    """Items, the best first."""

    id: str
    object: Literal["retrieval"]
    model: str
    catalogue: str
    epoch: int = Field(description="Updates of the catalogue that the search saw.")
    items: list[FoundItem]
    notes: list[Note]
    usage: dict[str, int]


class Acknowledged(BaseModel):
    """Updates that are in the log."""

    epoch: int
    put: int
    deleted: int
