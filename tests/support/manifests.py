"""Manifests as YAML text for tests of commands: read as a user's file would be."""

from pathlib import Path

from controller.insight.simulation import SimulationSettings, simulate
from hami_dra.driver.simulated import machine
from hami_dra.driver.slices import machine_pools, slice_bodies
from hami_dra.kube.documents import Document, read_documents

NODES = {"n1": "g4dn.12xlarge", "n2": "g5.12xlarge"}
"""4 x T4 of 15 GiB and 4 x A10G of 22 GiB."""


def node(name, **more):
    status = {"allocatable": {"cpu": "8", "memory": "64Gi", "pods": "110"}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, **more}, "status": status}


def slices(name, machine_name):
    return slice_bodies(machine_pools(machine(machine_name, name)))


def device_class(name="vgpu", driver="nvidia.hami.io", **more):
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name, **more},
        "spec": {"selectors": [{"cel": {"expression": f'device.driver == "{driver}"'}}]},
    }


def cluster(*names):
    """Nodes with their slices, and the DeviceClasses `vgpu` and those of the webhook."""
    raws = [device_class(name) for name in ("vgpu", "nvidia-gpu.hami.io", "nvidia-vgpu.hami.io")]
    for name in names or NODES:
        raws += [node(name), *slices(name, NODES[name])]
    return raws


def part(memory="7500Mi", cores="0", class_name="vgpu", count=1):
    """One request for a part of a card."""
    capacity = {"requests": {"memory": memory, "cores": cores}}
    return {"name": "gpu", "exactly": {"deviceClassName": class_name, "count": count, "capacity": capacity}}


def claim(name, *requests, **more):
    metadata = {"name": name, **more}
    spec = {"devices": {"requests": list(requests or [part()])}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": spec}


def template(name, *requests, **inner):
    spec = {"metadata": inner, "spec": {"devices": {"requests": list(requests or [part()])}}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": spec,
    }


def pod(name, *claims, annotations=None, namespace=None, labels=None, limits=None, **spec):
    """`claims`: names of ResourceClaims, or `template:name`; entries are called c0, c1, ...

    Each has a container of its own, for claims that other pods may join must not meet others in one.
    """
    entries = []
    for number, claimed in enumerate(claims):
        key = "resourceClaimTemplateName" if claimed.startswith("template:") else "resourceClaimName"
        entries.append({"name": f"c{number}", key: claimed.removeprefix("template:")})
    metadata = {"name": name, "annotations": annotations or {}, "labels": labels or {}}
    if namespace:
        metadata["namespace"] = namespace
    used = [{"claims": [{"name": entry["name"]}]} for entry in entries] or [{}]
    main = {"name": "main", "resources": {"limits": limits or {}, **used[0]}}
    beside = [{"name": f"beside-{number}", "resources": each} for number, each in enumerate(used[1:], 1)]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [main, *beside], "resourceClaims": entries, **spec},
    }


def workload(kind, name, template_spec=None, *, labels=None, **spec):
    version = "batch/v1" if kind == "Job" else "apps/v1"
    inner = {"metadata": {"labels": labels or {}}, "spec": template_spec or {"containers": [{"name": "main"}]}}
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": {"template": inner, **spec}}


def documents(*raws):
    """As if all stood in one file."""
    flat = [raw for each in raws for raw in (each if isinstance(each, list) else [each])]
    return [Document(Path("in.yaml"), index, raw) for index, raw in enumerate(flat, 1)]


def simulated(*raws, **settings):
    return simulate(documents(*raws), SimulationSettings(**settings))


def from_text(tmp_path, text, name="in.yaml"):
    path = tmp_path / name
    path.write_text(text)
    return read_documents([path])
