"""Namespaces with quotas for cards, for tests: nodes with cards of chosen sizes, ResourceQuotas, old manifests."""

import msgspec

from hami_dra.api import names
from hami_dra.api.core import ResourceQuota
from tests.cards import card
from tests.support import manifests

MIB = 1 << 20
CLASSES = [manifests.device_class(name) for name in ("vgpu", "nvidia-gpu.hami.io", "nvidia-vgpu.hami.io")]


def quota(hard, name="quota", namespace="default", **spec):
    return {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": name, "namespace": namespace, "uid": f"quota-{namespace}-{name}"},
        "spec": {"hard": {f"limits.{key}": str(value) for key, value in hard.items()}, **spec},
    }


def quota_object(hard, name="quota", namespace="default", **spec):
    return msgspec.convert(quota(hard, name, namespace, **spec), ResourceQuota)


def guarantee(hard, name="guarantee", namespace="default"):
    """What a namespace is owed."""
    stated = quota(hard, name, namespace)
    stated["metadata"]["labels"] = {names.QUOTA_LABEL: names.GUARANTEE}
    return stated


def guarantee_object(hard, name="guarantee", namespace="default"):
    return msgspec.convert(guarantee(hard, name, namespace), ResourceQuota)


def nvidia_node(name, memories, **options):
    """A node and its slice: cards with so many MiB."""
    cards = [card(index, memory=f"{memory}Mi", **options) for index, memory in enumerate(memories)]
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "nvidia.hami.io", "nodeName": name, "pool": pool, "devices": cards}
    made = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}
    return [manifests.node(name), made]


def legacy(name, gpu=None, gpumem=None, percent=None, gpucores=None, **more):
    """A pod as HAMi's users write it."""
    wanted = {"gpu": gpu, "gpumem": gpumem, "gpumem-percentage": percent, "gpucores": gpucores}
    limits = {f"nvidia.com/{key}": str(value) for key, value in wanted.items() if value is not None}
    return manifests.pod(name, limits=limits, **more)


def devices_of(report):
    """Pod → names of its devices."""
    return {
        placed["pod"]: [
            result["device"] for claim in placed["claims"] for result in claim["allocation"]["devices"]["results"]
        ]
        for placed in report.placements
    }


def reasons_of(report):
    return {refused["pod"]: refused["reasons"] for refused in report.unplaced}
