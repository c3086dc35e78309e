"""The manifests that ship with this project (manifests/, deviceclasses/): found, read, applied.

Called by `make cluster`, by tests, by the chart's checks and by `hami-dra uninstall`. In: folder
names and a `Cluster`. Out: objects as JSON, and the cluster with them applied. Must not change what
is in the files: that is up to the caller.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from hami_dra.api import kinds
from hami_dra.api.kinds import Kind
from hami_dra.api.meta import Object
from hami_dra.kube.documents import read_documents
from hami_dra.kube.protocol import Cluster, NotFound

FIELD_MANAGER: Final = "hami-dra-manifests"
_INSTALLED: Final = Path(__file__).parents[1] / "shipped"
_CHECKOUT: Final = Path(__file__).parents[2]
OPTIONAL: Final = "optional"
"""Folder of manifests for some installations only."""
_FIRST: Final = ("Namespace", "ServiceAccount", "ClusterRole", "Role")
"""Applied before everything else, in this order; deleted after it."""


class UnknownKind(ValueError):
    """A manifest is of a kind that this project never writes."""


def shipped_folder(name: str) -> Path:
    """Return the folder `manifests` or `deviceclasses`, of the checkout or of the installed package."""
    for root in (_INSTALLED, _CHECKOUT):
        if (root / name).is_dir():
            return root / name
    raise FileNotFoundError(f"{name}/ is neither in {_INSTALLED} nor in {_CHECKOUT}; reinstall hami-dra")


def shipped(name: str) -> list[dict[str, Any]]:
    """Return the objects of a shipped folder and its subfolders, except `optional/`.

    Optional files are read individually: `shipped("manifests/optional/native.yaml")`. Raises
    BadDocument.
    """
    place = shipped_folder(name.partition("/")[0]) / name.partition("/")[2]
    documents = read_documents([place])
    return [each.raw for each in documents if place.is_file() or OPTIONAL not in each.source.relative_to(place).parts]


def kind_of(raw: Mapping[str, Any]) -> Kind[Object]:
    """Return the kind of an object. Raises UnknownKind."""
    kind = kinds.BY_GVK.get((str(raw.get("apiVersion")), str(raw.get("kind"))))
    if kind is None:
        raise UnknownKind(f"{raw.get('apiVersion')} {raw.get('kind')}: add it to hami_dra/api/kinds.py first")
    return kind


async def apply(cluster: Cluster, objects: Iterable[Mapping[str, Any]]) -> None:
    """Apply the objects with server-side apply.

    Existing objects are updated; fields that other managers own stay. Raises ClusterError,
    UnknownKind.
    """
    for raw in sorted(objects, key=_order):
        metadata = raw["metadata"]
        kind, namespace = kind_of(raw), metadata.get("namespace", "")
        await cluster.patch(kind, metadata["name"], raw, namespace=namespace, manager=FIELD_MANAGER)


async def remove(cluster: Cluster, objects: Iterable[Mapping[str, Any]]) -> None:
    """Delete those that exist, in the opposite order of `apply`. Raises ClusterError."""
    for raw in sorted(objects, key=_order, reverse=True):
        metadata = raw["metadata"]
        try:
            await cluster.delete(kind_of(raw), metadata["name"], namespace=metadata.get("namespace", ""))
        except NotFound:
            continue


def _order(raw: Mapping[str, Any]) -> int:
    kind = str(raw.get("kind"))
    return _FIRST.index(kind) if kind in _FIRST else len(_FIRST)
