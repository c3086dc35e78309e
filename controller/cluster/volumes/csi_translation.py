"""In-tree volumes as the CSI volumes that replace them (k8s.io/csi-translation-lib). Pure.

Only the five plugins that kube-scheduler migrates: Azure File and vSphere are never counted.
"""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from hami_dra.api.core import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from hami_dra.api.podvolumes import Volume
from hami_dra.api.storage import PersistentVolume, PersistentVolumeSpec

GA_ZONE: Final = "topology.kubernetes.io/zone"
GA_REGION: Final = "topology.kubernetes.io/region"
BETA_ZONE: Final = "failure-domain.beta.kubernetes.io/zone"
BETA_REGION: Final = "failure-domain.beta.kubernetes.io/region"
ZONE_DELIMITER: Final = "__"
_UNSPECIFIED: Final = "UNSPECIFIED"
_AWS_VOLUME: Final = re.compile(r"vol-[^/]*")


class Untranslatable(ValueError):
    """kube-scheduler fails on the volume; the message says what is wrong with it."""


class CsiVolumeId(NamedTuple):
    """A volume as NodeVolumeLimits counts it."""

    driver: str
    handle: str


class Plugin(NamedTuple):
    name: str
    driver: str
    topology_key: str
    """Empty: its volumes have no topology."""


_GCE: Final = Plugin("kubernetes.io/gce-pd", "pd.csi.storage.gke.io", "topology.gke.io/zone")
_AWS: Final = Plugin("kubernetes.io/aws-ebs", "ebs.csi.aws.com", "topology.ebs.csi.aws.com/zone")
_AZURE: Final = Plugin("kubernetes.io/azure-disk", "disk.csi.azure.com", "")
_CINDER: Final = Plugin("kubernetes.io/cinder", "cinder.csi.openstack.org", "topology.cinder.csi.openstack.org/zone")
_PORTWORX: Final = Plugin("kubernetes.io/portworx-volume", "pxd.portworx.com", "")
_MIGRATED: Final = {each.name: each for each in (_GCE, _AWS, _AZURE, _CINDER, _PORTWORX)}
_UNCOUNTED: Final = frozenset({"kubernetes.io/azure-file", "kubernetes.io/vsphere-volume"})
"""In-tree provisioners that have a CSI driver, but whose volumes kube-scheduler does not count."""


def plugin_of(source: Volume | PersistentVolumeSpec) -> Plugin | None:
    """Return the in-tree plugin of a volume that a CSI driver serves today, or None."""
    if source.gce_persistent_disk is not None:
        return _GCE
    if source.aws_elastic_block_store is not None:
        return _AWS
    if source.azure_disk is not None:
        return _AZURE
    if source.cinder is not None:
        return _CINDER
    return _PORTWORX if source.portworx_volume is not None else None


def driver_of_provisioner(provisioner: str) -> tuple[str, bool]:
    """Return the CSI driver that serves a provisioner, or an empty text, and whether it does so in
    place of an in-tree plugin.
    """
    if provisioner in _UNCOUNTED:
        return "", True
    plugin = _MIGRATED.get(provisioner)
    return (plugin.driver, True) if plugin is not None else (provisioner, False)


def inline_volume(volume: Volume) -> CsiVolumeId:
    """Return the CSI volume of an in-tree volume in a pod. Raises Untranslatable."""
    if volume.gce_persistent_disk is not None:
        return CsiVolumeId(_GCE.driver, _gce_handle("zones", _UNSPECIFIED, volume.gce_persistent_disk.pd_name))
    return _other_volume(volume)


def persistent_volume(volume: PersistentVolume) -> CsiVolumeId:
    """Return the CSI volume of an in-tree PersistentVolume. Raises Untranslatable."""
    disk = volume.spec.gce_persistent_disk
    if disk is None:
        return _other_volume(volume.spec)
    labels = volume.metadata.labels
    zones = (labels.get(BETA_ZONE) or labels.get(GA_ZONE) or "").split(ZONE_DELIMITER)
    if len(zones) > 1:
        return CsiVolumeId(_GCE.driver, _gce_handle("regions", _gce_region(zones), disk.pd_name))
    return CsiVolumeId(_GCE.driver, _gce_handle("zones", zones[0] or _UNSPECIFIED, disk.pd_name))


def translated_affinity(volume: PersistentVolume, plugin: Plugin) -> NodeSelector | None:
    """Return the node affinity of an in-tree volume on nodes where a CSI driver serves it.

    Zones become the driver's own topology key; without any in the affinity, those of the volume's
    label are added. Raises Untranslatable.
    """
    persistent_volume(volume)
    selector = volume.required_nodes
    if not plugin.topology_key:
        return selector
    zone, region = _topology_labels(volume)
    if _values_of(selector, zone):
        selector = _renamed(selector, zone, plugin.topology_key)
    elif zone in volume.metadata.labels:
        zones = {each.strip() for each in volume.metadata.labels[zone].split(ZONE_DELIMITER)} - {""}
        if zones:
            selector = _with_zones(selector, plugin.topology_key, zones)
    return _renamed(selector, BETA_REGION, GA_REGION) if region == BETA_REGION else selector


def _other_volume(source: Volume | PersistentVolumeSpec) -> CsiVolumeId:
    """Return the CSI volume of anything but a disk of GCE. Raises Untranslatable."""
    if source.aws_elastic_block_store is not None:
        return CsiVolumeId(_AWS.driver, _aws_handle(source.aws_elastic_block_store.volume_id))
    if source.azure_disk is not None:
        kind = source.azure_disk.kind
        if kind is not None and kind.lower() != "managed":
            raise Untranslatable(f"kind {kind} of an Azure disk is not supported in CSI migration")
        return CsiVolumeId(_AZURE.driver, source.azure_disk.disk_uri)
    if source.cinder is not None:
        return CsiVolumeId(_CINDER.driver, source.cinder.volume_id)
    assert source.portworx_volume is not None, "plugin_of says that it is an in-tree volume"
    return CsiVolumeId(_PORTWORX.driver, source.portworx_volume.volume_id)


def _gce_handle(scope: str, place: str, disk: str) -> str:
    return f"projects/{_UNSPECIFIED}/{scope}/{place}/disks/{disk}"


def _gce_region(zones: list[str]) -> str:
    regions = set()
    for zone in zones:
        parts = zone.split("-")
        if len(parts) != 3:
            raise Untranslatable(f"zone {zone} is not of the form locale-region-zone")
        regions.add("-".join(parts[:2]))
    if len(regions) != 1:
        raise Untranslatable(f"zones {', '.join(zones)} are not in one region")
    return regions.pop()


def _aws_handle(volume_id: str) -> str:
    """Return `vol-...` of `aws://zone/vol-...`; anything without that scheme is taken as it is."""
    if not volume_id.startswith("aws://"):
        return volume_id
    try:
        name = urlsplit(volume_id).path.strip("/")
    except ValueError:
        name = ""
    if _AWS_VOLUME.fullmatch(name) is None:
        raise Untranslatable(f"{volume_id} is no volume of AWS")
    return name


def _topology_labels(volume: PersistentVolume) -> tuple[str, str]:
    """Return the labels of zone and region that the volume uses: those of old, or today's."""
    keys = {each.key for term in _terms(volume.required_nodes) for each in term.match_expressions}
    for used in (keys, volume.metadata.labels):
        if GA_ZONE in used:
            return GA_ZONE, GA_REGION
        if BETA_ZONE in used:
            return BETA_ZONE, BETA_REGION
    return GA_ZONE, GA_REGION


def _terms(selector: NodeSelector | None) -> tuple[NodeSelectorTerm, ...]:
    return selector.node_selector_terms if selector is not None else ()


def _values_of(selector: NodeSelector | None, key: str) -> bool:
    """Return whether some requirement on the label names a value."""
    return any(each.key == key and each.values for term in _terms(selector) for each in term.match_expressions)


def _renamed(selector: NodeSelector | None, old: str, new: str) -> NodeSelector | None:
    if selector is None or not _values_of(selector, old):
        return selector

    def renamed(requirement: NodeSelectorRequirement) -> NodeSelectorRequirement:
        return msgspec.structs.replace(requirement, key=new) if requirement.key == old else requirement

    return NodeSelector(
        node_selector_terms=tuple(
            msgspec.structs.replace(term, match_expressions=tuple(map(renamed, term.match_expressions)))
            for term in selector.node_selector_terms
        )
    )


def _with_zones(selector: NodeSelector | None, key: str, zones: Iterable[str]) -> NodeSelector:
    zone = NodeSelectorRequirement(key=key, operator="In", values=tuple(sorted(zones)))
    return NodeSelector(
        node_selector_terms=tuple(
            msgspec.structs.replace(term, match_expressions=(*term.match_expressions, zone))
            for term in _terms(selector) or (NodeSelectorTerm(),)
        )
    )
