"""The fields of an object that decisions read, for snapshots, reports and simulations from stores.

Called by `hami-dra snapshot` and `controller.insight.whatif`. In: JSON or Structs of the kinds that
a simulation reads. Out: JSON. It keeps the fields that the Structs of `hami_dra.api` name, less
those that only clocks and people read. Commands, arguments, environment, images, names of Secrets,
foreign annotations and parameters of other drivers are therefore never in it. Of volumes it has
those that decide about a node: which PersistentVolumeClaim or disk it is, or that it is local, and
nothing of ConfigMaps and Secrets. So in a simulation from a snapshot no node is preferred for an image that it has. Pure.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from controller.insight.manifests import Raw, without_nulls
from hami_dra.api import kinds, names
from hami_dra.api.kinds import Kind
from hami_dra.api.meta import Object
from hami_dra.kube.documents import Document
from hami_dra.vendors.annotations import DECISION_ANNOTATIONS

_PASSING: Final = frozenset({"resourceVersion", "generation"})
"""Metadata that changes without a change to anything a decision reads."""
_CONDITION: Final = ("type", "status", "reason")
_STORES: Final = Path("the present state")


def essence(kind: Kind[Any], raw: Mapping[str, Any]) -> Raw:
    """Return the essence of an object given as JSON. Raises msgspec.ValidationError if it does not fit its Struct."""
    text = msgspec.json.encode(without_nulls(raw))
    found = msgspec.json.decode(text, type=kind.type, strict=False)
    if kind is kinds.POD:
        decisive = tuple([each for each in found.spec.volumes if each.is_read or each.is_local])
        found = replace(found, spec=replace(found.spec, volumes=decisive))
    return of_object(kind, found)


def of_object(kind: Kind[Any], obj: Object) -> Raw:
    """Return the essence of an object. Keys are sorted, so that two can be compared line by line."""
    found: Raw = _sorted(msgspec.json.decode(msgspec.json.encode(obj)))
    _strip(found)
    return {"apiVersion": found.pop("apiVersion", "") or kind.api_version, "kind": kind.name, **found}


def documents_of(objects: Iterable[tuple[Kind[Any], Object]]) -> list[Document]:
    """Return a controller's stores as documents, for a simulation of what would happen next."""
    return [Document(_STORES, number, of_object(kind, obj)) for number, (kind, obj) in enumerate(objects, 1)]


def _strip(raw: Raw) -> None:
    raw.pop("kind", None)
    _strip_metadata(raw.get("metadata", {}))
    spec, status = raw.get("spec", {}), raw.get("status", {})
    # names of images say what runs in a cluster; without them no node has an image already
    status.pop("images", None)
    for holder in (*spec.get("containers", ()), *spec.get("initContainers", ()), *spec.get("volumes", ())):
        holder.pop("image", None)
    if volumes := [volume for volume in spec.pop("volumes", ()) if volume.keys() - {"name"}]:
        spec["volumes"] = volumes
    if "metadata" in spec:  # of a template
        _strip_metadata(spec["metadata"])
    allocated = (status.get("allocation") or {}).get("devices")
    for devices in (spec.get("devices"), spec.get("spec", {}).get("devices"), spec, allocated):
        if isinstance(devices, dict):  # in a slice it is the list of devices
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
    """Remove parameters of other drivers; hami-dra's mark stays, or its allocations would look foreign."""
    opaque = entry.get("opaque")
    if opaque and opaque["driver"] != names.ALLOCATION_MARK and not opaque["driver"].endswith(f".{names.DOMAIN}"):
        opaque["parameters"] = {}


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(entry) for entry in value] if isinstance(value, list) else value
