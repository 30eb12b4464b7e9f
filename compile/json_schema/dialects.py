"""The drafts of JSON Schema: which keywords each has."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, eq=False)
class Dialect:
    """The keywords of a draft, without those of vocabularies that a meta-schema leaves out."""

    version: int  # 4, 6, 7, 2019 or 2020
    keywords: frozenset[str]  # those that are no annotations

    @property
    def id(self) -> str:
        """The keyword that gives a resource its identifier."""
        return "id" if self.version == 4 else "$id"

    @property
    def ref_alone(self) -> bool:
        """Whether keywords beside `$ref` are ignored."""
        return self.version <= 7


# What each draft adds. Later drafts still understand older spellings where these cannot mean anything else.
_ADDED = {
    4: """$ref type enum properties patternProperties additionalProperties required dependencies items additionalItems
        minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength pattern format minItems
        maxItems uniqueItems minProperties maxProperties allOf anyOf oneOf not""",
    6: "const contains propertyNames",
    7: "if then else",
    2019: "dependentRequired dependentSchemas unevaluatedItems unevaluatedProperties minContains maxContains"
    " $recursiveRef",
    2020: "prefixItems $dynamicRef",
}
DIALECTS = {
    version: Dialect(version, frozenset(word for v in _ADDED if v <= version for word in _ADDED[v].split()))
    for version in _ADDED
}
VOCABULARIES = {
    "core": "$ref $recursiveRef $dynamicRef",
    "applicator": "properties patternProperties additionalProperties propertyNames dependentSchemas dependencies"
    " prefixItems items additionalItems contains allOf anyOf oneOf not if then else",
    "unevaluated": "unevaluatedItems unevaluatedProperties",
    "validation": "type enum const minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minLength maxLength"
    " pattern minItems maxItems uniqueItems minContains maxContains minProperties maxProperties required"
    " dependentRequired",
    "format": "format",
    "format-annotation": "format",
    "format-assertion": "format",
    "content": "",
    "meta-data": "",
    "hyper-schema": "",
}
_BY_URI = {
    "json-schema.org/schema": 2020,
    "json-schema.org/draft-05/schema": 4,
    **{f"json-schema.org/draft-0{v}/{name}": v for v in (4, 6, 7) for name in ("schema", "hyper-schema")},
    **{
        f"json-schema.org/draft/{v}/{name}": int(v[:4])
        for v in ("2019-09", "2020-12")
        for name in ("schema", "hyper-schema")
    },
}


@lru_cache(maxsize=64)
def by_uri(uri: str) -> Dialect | None:
    """Return the dialect of an official `$schema`; None for any other. Raises ValueError for a draft before 4."""
    bare = uri.partition("://")[2].rstrip("#").rstrip("/")
    if bare in {f"json-schema.org/draft-0{v}/{name}" for v in range(4) for name in ("schema", "hyper-schema")}:
        raise ValueError
    version = _BY_URI.get(bare)
    return DIALECTS[version] if version else None
