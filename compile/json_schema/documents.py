"""Schemas as documents: resources, the dialect of each, and the targets of references.

Nothing is fetched. References within one document are followed here, key by key. For all others, the `referencing`
library indexes the identifiers and anchors of the schema, of the official meta-schemas, and of those of the caller's
documents that references name; of all of them, once a reference names none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote, urldefrag, urljoin

from ...errors import AddDocument, Advice, SchemaError
from .algebra import Reference
from .dialects import DIALECTS, VOCABULARIES, Dialect, by_uri
from .source import Json, Path, Schema, SchemaSource, pointer, quoted, read, shown

if TYPE_CHECKING:
    from referencing import Registry, Resource

DynamicAnchors: TypeAlias = "frozenset[tuple[str, _Resource]]"
"""The dynamic anchors of the resources that were entered: a name, and the outermost resource that has it."""


class Scope:
    """A resource, which is a document or a part of one with an identifier, as references in it see it.

    There is one object for each resource and set of dynamic anchors, so that it serves as a key.
    """

    __slots__ = ("dialect", "documents", "dynamic", "id", "later", "path", "ref_alone", "root", "targets", "uri")

    def __init__(
        self,
        documents: Documents,
        root: Json,
        uri: str,
        path: Path,
        dialect: Dialect,
        dynamic: DynamicAnchors,
    ) -> None:
        self.documents = documents
        self.root = root
        self.uri = uri  # without a fragment; absolute if possible
        self.path = path
        self.dialect = dialect
        self.dynamic = dynamic  # those below the root
        self.id = dialect.id
        self.ref_alone = dialect.ref_alone
        self.targets: dict[tuple[str, str], Target] = {}  # by keyword and reference
        self.later: dict[str, Reference] = {}  # by reference

    def enter(self, contents: dict[str, Json], path: Path) -> Scope:
        """Return the scope of a subschema of this resource: another one if the subschema has an identifier."""
        name = contents.get(self.id)
        if not isinstance(name, str) or contents is self.root:
            return self
        if self.dialect.version <= 7 and (name.startswith("#") or "$ref" in contents):
            return self
        return self.documents.scope(self, contents, urldefrag(_join(self.uri, name, (path, self.id))).url, path)


@dataclass(frozen=True, eq=False)
class Target:
    """The schema that a reference leads to."""

    contents: Json
    scope: Scope
    path: Path


class _Resource:
    """A resource with its dynamic anchors by name; "" stands for `$recursiveAnchor`."""

    __slots__ = ("anchors", "dialect", "path", "root", "uri")

    def __init__(self, root: Json, uri: str, path: Path, dialect: Dialect, anchors: dict[str, Json]) -> None:
        self.root, self.uri, self.path, self.dialect, self.anchors = root, uri, path, dialect, anchors


class Documents:
    """The schema to compile and the documents that it may refer to."""

    def __init__(self, root: Schema, given: Mapping[str, SchemaSource] | None) -> None:
        self._given = given or {}
        self._unread = dict.fromkeys(self._given)  # those that are not in the registry
        self._unreadable: list[str] = []  # messages about those of them that no reference names
        self._scopes: dict[tuple[int, str, DynamicAnchors], Scope] = {}
        self._resources: dict[tuple[int, str], _Resource] = {}
        self._customs: dict[str, Dialect] = {}  # by `$schema`
        self._registry: Registry[Json] | None = None
        dialect = self._dialect(root, DIALECTS[2020], "")
        uri = ""
        if isinstance(root, dict):
            for keyword in (dialect.id, "id"):  # `id` is common in schemas that name no draft
                name = root.get(keyword)
                if isinstance(name, str) and not name.startswith("#"):
                    uri = urldefrag(_join("", name, ("", keyword))).url
                    break
        self.root = Scope(self, root, uri, "", dialect, frozenset())
        self._scopes[(id(root), uri, frozenset())] = self.root

    # ---------------------------------------------------------------------------------------------- resources

    def scope(self, outer: Scope, root: Json, uri: str, path: Path, dynamic: DynamicAnchors | None = None) -> Scope:
        """Return the scope of a resource entered from another; dynamic: its anchors, None for those of the other."""
        dialect = self._dialect(root, outer.dialect, path)
        dynamic = outer.dynamic if dynamic is None else dynamic
        if dialect.version >= 2019:
            known = {name for name, _ in dynamic}
            resource = self._resource(root, uri, path, dialect)
            new = [name for name in resource.anchors if name not in known]
            if new:  # those of the root, the outermost of all, need not be noted
                first = self._resource(self.root.root, self.root.uri, "", self.root.dialect).anchors
                dynamic = dynamic.union((name, resource) for name in new if name not in first)
        key = (id(root), uri, dynamic)
        scope = self._scopes.get(key)
        if scope is None:
            scope = self._scopes[key] = Scope(self, root, uri, path, dialect, dynamic)
        return scope

    def _resource(self, root: Json, uri: str, path: Path, dialect: Dialect) -> _Resource:
        """Return a resource with its dynamic anchors."""
        key = (id(root), uri)
        found = self._resources.get(key)
        if found is None:
            anchors: dict[str, Json] = {}
            if isinstance(root, dict) and dialect.version >= 2019:
                if root.get("$recursiveAnchor") is True:
                    anchors[""] = root
                stack = [_resource_of(root, dialect)]
                with _readable(path):
                    while stack:
                        at = stack.pop()
                        name = at.contents.get("$dynamicAnchor") if isinstance(at.contents, dict) else None
                        if isinstance(name, str):
                            anchors.setdefault(name, at.contents)
                        stack.extend(sub for sub in at.subresources() if sub.id() is None)
            found = self._resources[key] = _Resource(root, uri, path, dialect, anchors)
        return found

    def _dialect(self, contents: Json, default: Dialect, path: Path) -> Dialect:
        """Return the dialect that a resource names, or else the default."""
        uri = contents.get("$schema") if isinstance(contents, dict) else None
        if uri is None:
            return default
        if not isinstance(uri, str):
            raise SchemaError(f'"$schema" must be a URI, not {shown(uri)}', pointer((path, "$schema")))
        try:
            official = by_uri(uri)
        except ValueError:
            raise SchemaError(
                f'"$schema" names a draft before 4, {uri}, whose keywords mean other things: '
                "bring the schema to a later draft (4, 6, 7, 2019-09, 2020-12)",
                pointer((path, "$schema")),
            ) from None
        if official is not None:
            return official
        custom = self._customs.get(uri)
        if custom is None:
            self._customs[uri] = DIALECTS[2020]  # a meta-schema may lead back to itself
            custom = self._customs[uri] = self._custom(uri, path)
        return custom

    def _custom(self, uri: str, path: Path) -> Dialect:
        """Return the dialect of a caller's meta-schema: its draft, without the vocabularies that it leaves out."""
        bare = uri.rstrip("#")
        given = next((self._given[name] for name in (uri, bare, bare + "#") if name in self._given), None)
        meta = read(given, bare + "#") if given is not None else None
        if not isinstance(meta, dict):
            return DIALECTS[2020]
        base = self._dialect(meta, DIALECTS[2020], bare + "#")
        vocabularies = meta.get("$vocabulary")
        if base.version < 2019 or not isinstance(vocabularies, dict):
            return base
        words: set[str] = set()
        for name, needed in vocabularies.items():
            _, official, last = str(name).partition("//json-schema.org/draft/")
            last = last.partition("/vocab/")[2]
            if official and last in VOCABULARIES:
                words.update(VOCABULARIES[last].split())
            elif needed:
                raise SchemaError(
                    f"the meta-schema {uri} requires the vocabulary {name}, which is not supported: set it to false "
                    'there if its keywords are annotations, or name another "$schema"',
                    pointer((path, "$schema")),
                )
        return Dialect(base.version, base.keywords & words)

    # --------------------------------------------------------------------------------------------- references

    def resolve(self, scope: Scope, keyword: str, reference: Json, path: Path) -> Target:
        """Return the target of a reference in a scope. Raises SchemaError, with the path, if it has none."""
        if not isinstance(reference, str):
            raise SchemaError(f'"{keyword}" must be a URI reference, not {shown(reference)}', pointer(path))
        key = (keyword, reference)
        found = scope.targets.get(key)
        if found is None:
            found = self._static(scope, reference, path)
            if keyword == "$dynamicRef":
                found = self._dynamic(scope, found, unquote(urldefrag(reference).fragment))
            elif keyword == "$recursiveRef":
                found = self._recursive(scope, found)
            if not isinstance(found.contents, (dict, bool)):
                raise SchemaError(
                    f"{quoted(reference)} leads to {shown(found.contents)}, which is no schema", pointer(path)
                )
            scope.targets[key] = found
        return found

    def _static(self, scope: Scope, reference: str, path: Path) -> Target:
        """Return where a reference leads as a `$ref`."""
        if reference.startswith("#"):
            uri, fragment = scope.uri, reference[1:]
        else:
            uri, fragment = urldefrag(_join(scope.uri, reference, path))
        fragment, dynamic = unquote(fragment), scope.dynamic
        if uri != scope.uri:
            scope = self._other(scope, uri, reference, path)
        if not fragment:
            return Target(scope.root, scope, scope.path)
        if not fragment.startswith("/"):
            return self._anchor(scope, fragment, reference, path)
        contents, named = scope.root, scope
        at: Path = scope.path
        for key in fragment[1:].split("/"):
            key = key.replace("~1", "/").replace("~0", "~")
            if isinstance(contents, dict) and key in contents:
                contents = contents[key]
            elif isinstance(contents, list) and key.isdecimal() and int(key) < len(contents):
                contents = contents[int(key)]
            else:
                raise SchemaError(
                    f"{quoted(reference)} leads nowhere: there is no {json.dumps(key)} in "
                    f"{pointer(at) or 'the schema'}",
                    pointer(path),
                )
            at = (at, key)
            if isinstance(contents, dict) and scope.id in contents:
                scope = scope.enter(contents, at)
        if scope is not named:  # the pointer does not enter the resources that it passes through
            scope = self.scope(scope, scope.root, scope.uri, scope.path, dynamic)
        return Target(contents, scope, at)

    def _other(self, scope: Scope, uri: str, reference: str, path: Path) -> Scope:
        """Return the scope of another resource, by its URI."""
        if uri == self.root.uri:
            return self.scope(scope, self.root.root, uri, "")
        resource = self._indexed(uri)
        if resource is None:
            raise SchemaError(
                f"{quoted(reference)} leads to {uri or 'the document itself'}, which is not known and is not fetched",
                pointer(path),
                remedies=[AddDocument(uri), *(Advice(f"Unless it is in this one: {e}") for e in self._unreadable[:1])],
            )
        return self.scope(scope, resource.contents, uri, uri + "#")

    def _anchor(self, scope: Scope, name: str, reference: str, path: Path) -> Target:
        """Return the target of a reference to an anchor of a resource."""
        from referencing.exceptions import Unresolvable

        try:
            contents = self._index().anchor(scope.uri, name).value.resource.contents
        except (Unresolvable, KeyError):
            raise SchemaError(
                f'{quoted(reference)} leads nowhere: no subschema has the "$anchor" {json.dumps(name)}',
                pointer(path),
            ) from None
        return Target(contents, scope, f"{pointer(scope.path) or '#'}{name}")

    def _dynamic(self, scope: Scope, found: Target, name: str) -> Target:
        """Return where `$dynamicRef` leads, from where it would lead as a `$ref`."""
        if name.startswith("/") or not isinstance(found.contents, dict) or found.contents.get("$dynamicAnchor") != name:
            return found
        return self._outermost(scope, name) or found

    def _recursive(self, scope: Scope, found: Target) -> Target:
        """Return where `$recursiveRef` leads, from where it would lead as a `$ref`."""
        if not isinstance(found.contents, dict) or found.contents.get("$recursiveAnchor") is not True:
            return found
        return self._outermost(scope, "") or found

    def _outermost(self, scope: Scope, name: str) -> Target | None:
        """Return the dynamic anchor of a name in the outermost resource that has one."""
        root = self.root
        resources = [self._resource(root.root, root.uri, "", root.dialect)]
        resources += [resource for known, resource in scope.dynamic if known == name]
        for resource in resources:
            if name in resource.anchors:
                inner = self.scope(scope, resource.root, resource.uri, resource.path)
                at = pointer(resource.path) + (
                    name if pointer(resource.path).endswith("#") else "#" + name if name else ""
                )
                return Target(resource.anchors[name], inner, at)
        return None

    def _indexed(self, uri: str) -> Resource[Json] | None:
        """Return the resource of an identifier: a document, or a part of one.

        The schema's own resources come first, then the caller's document of that name, then the official meta-schemas,
        then parts of the caller's documents.
        """
        from jsonschema_specifications import REGISTRY

        found: Resource[Json] | None = self._index().get(uri)
        if found is REGISTRY.get(uri):
            for name in (uri, uri + "#"):
                if name in self._unread:
                    self._add(name)
            found = self._index().get(uri)
        while found is None and self._unread:
            try:
                self._add(next(iter(self._unread)))
            except SchemaError as error:
                self._unreadable.append(str(error))
            found = self._index().get(uri)
        return found

    def _index(self) -> Registry[Json]:
        """Return the registry of all resources by identifier and anchor."""
        if self._registry is None:
            from jsonschema_specifications import REGISTRY

            resource = _resource_of(self.root.root, self.root.dialect)
            with _readable(""):
                self._registry = REGISTRY.with_resource(self.root.uri, resource).crawl()
        return self._registry

    def _add(self, name: str) -> None:
        """Put a document of the caller into the registry."""
        del self._unread[name]
        path = name.rstrip("#") + "#"
        contents = read(self._given[name], path)
        resource = _resource_of(contents, self._dialect(contents, self.root.dialect, path))
        with _readable(path):
            self._registry = self._index().with_resource(name, resource).crawl()


def _resource_of(contents: Json, dialect: Dialect) -> Resource[Json]:
    """Return a schema as `referencing` has it."""
    resource: Resource[Json] = _specification(dialect.version).create_resource(contents)
    return resource


@cache
def _specification(version: int) -> Any:
    """Return a draft as `referencing` has it."""
    from referencing import jsonschema

    specifications = {
        4: jsonschema.DRAFT4, 6: jsonschema.DRAFT6, 7: jsonschema.DRAFT7,
        2019: jsonschema.DRAFT201909, 2020: jsonschema.DRAFT202012,
    }  # fmt: skip
    return specifications[version]


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn the errors of `referencing` for a malformed document into a SchemaError about it."""
    try:
        yield
    except (AttributeError, TypeError, ValueError, KeyError) as error:
        raise SchemaError(
            f"the identifiers in it cannot be read ({error}): "
            'each "$id" and "$anchor" must be a string, each subschema an object, true or false',
            pointer(path),
        ) from error


def _join(base: str, reference: str, path: Path) -> str:
    """Return a reference made absolute."""
    try:
        return urljoin(base, reference)
    except ValueError as error:
        raise SchemaError(f"{quoted(reference)} is no URI reference: {error}", pointer(path)) from None
