"""Reads documents, of files or of a live cluster, as objects.

Called by `controller.insight.simulation` and by commands that read a cluster; imports nothing that
decides. In: documents. Out: `Item`s in file order, and notes about unused documents. Nothing is
validated as the API server would: every readable object counts. If a document cannot be read as its
kind, `BadManifest` names file, document, object and field. Pure.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hami_dra.api import kinds
from hami_dra.api.errors import InputError
from hami_dra.api.kinds import Kind
from hami_dra.api.meta import Object
from hami_dra.kube.documents import Document

Raw = dict[str, Any]

READ: Final[tuple[Kind[Any], ...]] = (
    kinds.NODE,
    kinds.NAMESPACE,
    kinds.RESOURCE_SLICE,
    kinds.DEVICE_CLASS,
    kinds.DEVICE_TAINT_RULE,
    kinds.RESOURCE_CLAIM,
    kinds.RESOURCE_CLAIM_TEMPLATE,
    kinds.RESOURCE_QUOTA,
    kinds.PRIORITY_CLASS,
    kinds.POD_DISRUPTION_BUDGET,
    *kinds.STORAGE,
    kinds.POD,
    *kinds.WORKLOADS,
    *kinds.POD_SETS,
    kinds.WORKLOAD,
    kinds.POD_GROUP,
    kinds.COSCHEDULING_POD_GROUP,
    kinds.VOLCANO_POD_GROUP,
)
_BY_NAME: Final = {kind.name: kind for kind in reversed(READ)}
_BY_GROUP: Final = {(kind.group, kind.name): kind for kind in READ}
_ALIKE: Final = 0.9
"""Likeness from which another kind is taken for a misspelt one: `ResourceClaims`, not `Deployment2`."""
_OTHER_SHAPE: Final = frozenset({"v1alpha2", "v1alpha3", "v1beta1"})
"""Versions of resource.k8s.io with other slices and claims; v1beta2 equals v1 except for its name."""
DEFAULT_NAMESPACE: Final = "default"


class BadManifest(InputError):
    """A document cannot be read as its kind. The message names file, document, object, field, and what is wrong."""


class Item(Struct, frozen=True):
    """One object of the input: `raw` has everything that the Struct `object` leaves out."""

    source: str
    """Prefix for messages: `pods.yaml, document 2`."""
    kind: Kind[Any]
    raw: Raw
    object: Any
    problem: str = ""
    """The part of the object that cannot be read (`hami_dra.api.opaque`); the rest counts."""

    @property
    def key(self) -> str:
        return str(self.object.key)


class Gathered(Struct, frozen=True):
    items: tuple[Item, ...]
    """In file order. An object that is given twice keeps its first position."""
    notes: tuple[str, ...]
    unreadable: tuple[str, ...] = ()
    """The subset of the notes about parts of objects that cannot be read."""


def gather(documents: Iterable[Document], after: Sequence[Item] = ()) -> Gathered:
    """Return these objects, and those of all documents. Raises BadManifest.

    An identical second object is ignored; a different one of the same name replaces the first, as
    with `kubectl apply`. Slices all count, because the allocator ignores their names.
    """
    found = {(item.kind.resource, item.key): item for item in after}
    skipped: dict[str, list[Document]] = {}
    generated: dict[tuple[str, str], int] = {}
    owners: dict[tuple[str, object], str] = {(item.kind.name, item.object.metadata.uid): item.key for item in after}
    notes: list[str] = []
    unreadable: list[str] = []
    for document in documents:
        kind = _kind_of(document)
        if kind is None:
            skipped.setdefault(_unused(document.raw), []).append(document)
            continue
        item = _alone(read(str(document), kind, _named(document, kind, generated)), owners)
        if item.problem:
            unreadable.append(f"{document}: {describe(kind, item.raw)}: {item.problem}")
        same = found.get((kind.resource, item.key))
        if same is not None and same.raw != item.raw:
            if kind is kinds.RESOURCE_SLICE:
                notes.append(f"{document}: {kind.name} {item.key} is also given in {same.source}; both count")
                item = _apart(item, lambda key: (kinds.RESOURCE_SLICE.resource, key) in found)
            else:
                notes.append(f"{document}: {kind.name} {item.key} is also given in {same.source}; this one counts")
        if same is None or same.raw != item.raw:
            found[kind.resource, item.key] = item
    for what, several in skipped.items():
        more = f", and {len(several) - 1} more" if len(several) > 1 else ""
        notes.append(f"{several[0]}{more}: {what}, skipped")
    return Gathered(tuple(found.values()), (*unreadable, *notes), tuple(unreadable))


def _alone(item: Item, owners: dict[tuple[str, object], str]) -> Item:
    """Return the item with a UID of its own. `owners`: (kind, UID) → key of the first with it; updated here."""
    uid = item.object.metadata.uid
    if owners.setdefault((item.kind.name, uid), item.key) == item.key:
        return item
    metadata = {name: value for name, value in item.raw["metadata"].items() if name != "uid"}
    return read(item.source, item.kind, {**item.raw, "metadata": metadata})


def read(source: str, kind: Kind[Any], raw: Mapping[str, Any], inside: tuple[str, str] = ("", "")) -> Item:
    """Return the object as its Struct, with the namespace and UID that an API server would set.

    `inside`: the object that it is a part of, and the path in it, for messages. An object without a
    UID gets one made of kind and name. One that has a UID keeps it, because others refer to it: the
    claim of an ephemeral volume to its pod, a PersistentVolume to its claim. Raises BadManifest.
    """
    try:
        filled: Raw = without_nulls(raw)
    except RecursionError:
        raise BadManifest(f"{source}: {inside[0] or describe(kind, raw)}: it is nested too deeply") from None
    metadata = filled.get("metadata", {})
    if isinstance(metadata, dict):
        metadata = {**metadata}
        if kind.namespaced:
            metadata["namespace"] = metadata.get("namespace") or DEFAULT_NAMESPACE
        uid = derived_uid(kind, metadata.get("namespace", ""), metadata.get("name", ""))
        metadata["uid"] = metadata.get("uid") or uid
        filled["metadata"] = metadata
    try:
        obj: Object = msgspec.json.decode(msgspec.json.encode(filled), type=kind.type, strict=False)
    except msgspec.ValidationError as error:
        problem = _problem(error, filled, inside[1])
        raise BadManifest(f"{source}: {inside[0] or describe(kind, filled)}: {problem}") from None
    except (TypeError, OverflowError, UnicodeError, msgspec.DecodeError, RecursionError) as error:
        what = inside[0] or describe(kind, filled)
        raise BadManifest(f"{source}: {what}: it cannot be converted to JSON: {error}") from None
    return Item(source, kind, filled, obj, kind.settled(obj))


def derived_uid(kind: Kind[Any], namespace: str, name: str) -> str:
    """Return the UID of an object that was given without one."""
    return f"{kind.name}/{namespace}/{name}"


def describe(kind: Kind[Any], raw: Mapping[str, Any]) -> str:
    """Return how messages name the object: `Pod default/a`."""
    metadata = raw.get("metadata")
    metadata = metadata if isinstance(metadata, Mapping) else {}
    name = metadata.get("name") or metadata.get("generateName") or "(no name)"
    namespace = f"{metadata.get('namespace') or DEFAULT_NAMESPACE}/" if kind.namespaced else ""
    return f"{kind.name} {namespace}{name}"


# --- kinds -----------------------------------------------------------------------------------


def _kind_of(document: Document) -> Kind[Any] | None:
    """Return the kind; without apiVersion, the kind's name decides. Raises BadManifest."""
    raw = document.raw
    name = str(raw.get("kind"))
    by_name = _BY_NAME.get(name)
    if by_name is None:
        return None
    group, _, version = str(raw.get("apiVersion") or by_name.api_version).rpartition("/")
    kind = _BY_GROUP.get((group, name))
    if kind is None:
        return None
    if group == kinds.RESOURCE_CLAIM.group and version in _OTHER_SHAPE and kind is not kinds.DEVICE_TAINT_RULE:
        raise BadManifest(
            f"{document}: {describe(kind, raw)}: apiVersion {group}/{version}: write it as {kind.api_version}"
        )
    return kind


def _unused(raw: Raw) -> str:
    if not raw.get("kind"):
        return "no kind is given"
    text = f"{' '.join(str(raw[part]) for part in ('apiVersion', 'kind') if raw.get(part))} is not used here"
    near = difflib.get_close_matches(str(raw["kind"]), _BY_NAME, n=1, cutoff=_ALIKE)
    return f"{text} (did you mean {near[0]}?)" if near and near[0] != raw["kind"] else text


def _named(document: Document, kind: Kind[Any], generated: dict[tuple[str, str], int]) -> Raw:
    """Return the object with a name; `generateName` gets a number appended. Raises BadManifest."""
    metadata = document.raw.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        return document.raw  # `read` reports this
    metadata = metadata or {}
    if metadata.get("name"):
        return document.raw
    prefix = metadata.get("generateName")
    if not prefix:
        raise BadManifest(f"{document}: {kind.name}: metadata.name is missing")
    number = generated.get((kind.name, str(prefix)), 0)
    generated[kind.name, str(prefix)] = number + 1
    return {**document.raw, "metadata": {**metadata, "name": f"{prefix}{number}"}}


def _apart(item: Item, taken: Callable[[str], bool]) -> Item:
    """Return the slice under a unique name that sorts right after its own. Slices of a pool are ordered by name."""
    metadata = item.object.metadata
    number = 2
    while taken(f"{metadata.name} ({number:02})"):
        number += 1
    name = f"{metadata.name} ({number:02})"
    renamed = msgspec.structs.replace(metadata, name=name, uid=f"{item.kind.name}//{name}")
    return replace(item, object=msgspec.structs.replace(item.object, metadata=renamed))


# --- reading ---------------------------------------------------------------------------------


def without_nulls(value: Any) -> Any:
    """Return the value without null fields. A null in a list stays, because there it is an error to report."""
    if isinstance(value, Mapping):
        return {key: without_nulls(entry) for key, entry in value.items() if entry is not None}
    return [without_nulls(entry) for entry in value] if isinstance(value, list) else value


_AT: Final = re.compile(r" - at `(?:key in )?\$\.?(.*?)`$")
_MISSING: Final = re.compile(r"Object missing required field `(.*)`")
_WORDS: Final = {
    "str": "text",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "nothing",
}
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {"str": (str,), "int": (int,), "float": (float,), "bool": (bool,)}


def _problem(error: msgspec.ValidationError, raw: Raw, prefix: str) -> str:
    """Return a message such as `spec.containers: a list is wanted, not text`."""
    text = str(error)
    found = _AT.search(text)
    path, text = (found[1], text[: found.start()]) if found else ("", text)
    if missing := _MISSING.fullmatch(text):
        return f"{'.'.join(filter(None, (prefix, path, missing[1])))} is missing"
    kinds_named = re.fullmatch(r"Expected `(.*)`, got `(.*)`", text)
    if kinds_named is None:
        return f"{'.'.join(filter(None, (prefix, path)))}: {text[:1].lower()}{text[1:]}"
    wanted, got = kinds_named.groups()
    path = _with_key(path, got, raw)
    words = " or ".join(_WORDS.get(word, word) for word in wanted.split(" | ") if word != "null")
    hint = "; put it in quotes" if "str" in wanted.split(" | ") and got in _TYPES else ""
    return f"{'.'.join(filter(None, (prefix, path)))}: {words} is wanted, not {_WORDS.get(got, got)}{hint}"


def _with_key(path: str, got: str, raw: Raw) -> str:
    """Return the path with the first mapping key of the wrong type in place of msgspec's `[...]`."""
    if not path.endswith("[...]") or got not in _TYPES:
        return path
    place: Any = raw
    for step in re.findall(r"[^.\[\]]+", path.removesuffix("[...]")):
        try:
            place = place[int(step)] if isinstance(place, list) else place[step]
        except (KeyError, IndexError, ValueError, TypeError):
            return path
    if isinstance(place, dict):
        for key, value in place.items():
            if type(value) in _TYPES[got]:
                return f'{path.removesuffix("[...]")}["{key}"]'
    return path
