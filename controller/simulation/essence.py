"""What decisions read of an object, and nothing else of it: for what is kept, sent to somebody, or handed from stores to a simulation.

Called by `hami-dra snapshot` and `controller.whatif`. In: JSON or Structs of the kinds that a simulation reads. Out: JSON. What is
left in is what the Structs of `hami_dra.api` name, less what only clocks and people read; so commands, arguments, environment,
images, volumes, Secrets' names, annotations of others and parameters of other drivers are not in it, whatever they are called. Pure.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from controller.simulation.objects import Raw, without_nulls
from hami_dra.api import names
from hami_dra.api.kinds import Kind
from hami_dra.api.meta import Object
from hami_dra.cluster.documents import Document
from hami_dra.vendors.annotations import DECISION_ANNOTATIONS

_PASSING: Final = frozenset({"resourceVersion", "generation"})
"""Of metadata: changes without anything having changed that a decision reads."""
_CONDITION: Final = ("type", "status", "reason")
_STORES: Final = Path("the present state")


def essence(kind: Kind[Any], raw: Mapping[str, Any]) -> Raw:
    """Raises msgspec.ValidationError where the object does not fit its Struct."""
    text = msgspec.json.encode(without_nulls(raw))
    return of_object(kind, msgspec.json.decode(text, type=kind.type, strict=False))


def of_object(kind: Kind[Any], obj: Object) -> Raw:
    """The same of what a watch or a list gave. Keys are in one order, so that two of them can be compared line by line."""
    found: Raw = _sorted(msgspec.json.decode(msgspec.json.encode(obj)))
    _strip(found)
    return {"apiVersion": found.pop("apiVersion", "") or kind.api_version, "kind": kind.name, **found}


def documents_of(objects: Iterable[tuple[Kind[Any], Object]]) -> list[Document]:
    """Of a controller's stores, for a simulation of what would happen next."""
    return [Document(_STORES, number, of_object(kind, obj)) for number, (kind, obj) in enumerate(objects, 1)]


def _strip(raw: Raw) -> None:
    raw.pop("kind", None)
    _strip_metadata(raw.get("metadata", {}))
    spec, status = raw.get("spec", {}), raw.get("status", {})
    if "metadata" in spec:  # of a template
        _strip_metadata(spec["metadata"])
    allocated = (status.get("allocation") or {}).get("devices")
    for devices in (spec.get("devices"), spec.get("spec", {}).get("devices"), spec, allocated):
        if isinstance(devices, dict):  # in a slice it is the list of them
            for entry in devices.get("config", ()):
                _strip_parameters(entry)
    for holder in (status, *status.get("devices", ())):
        if "conditions" in holder:
            holder["conditions"] = [
                {field: each[field] for field in _CONDITION if field in each} for each in holder["conditions"] or ()
            ]


def _strip_metadata(metadata: Raw) -> None:
    for field in _PASSING & metadata.keys():
        del metadata[field]
    kept = {name: value for name, value in metadata.pop("annotations", {}).items() if name in DECISION_ANNOTATIONS}
    if kept:
        metadata["annotations"] = kept


def _strip_parameters(entry: Raw) -> None:
    """Those of other drivers are between them and their users."""
    opaque = entry.get("opaque")
    if opaque and not opaque["driver"].endswith(f".{names.DOMAIN}"):
        opaque["parameters"] = {}


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(entry) for entry in value] if isinstance(value, list) else value
