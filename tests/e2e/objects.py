"""Kubernetes objects as the end-to-end tests write them: plain dicts, as short as a test wants to read them."""

import itertools

from tests.support.gang_objects import MIN_AVAILABLE_LABEL, NAME_LABEL

NODE_POLICY = "hami.io/node-scheduler-policy"
DEVICE_POLICY = "hami.io/gpu-scheduler-policy"
CLASS = "nvidia-vgpu.hami.io"
_NUMBERS = itertools.count()


def policies(node, device):
    return {NODE_POLICY: node, DEVICE_POLICY: device}


def request(name="gpu", device_class=CLASS, *, count=None, memory=None, cores=None, selector=None, **more):
    """One `exactly` request; memory and cores make it a part of a card."""
    exactly = {"deviceClassName": device_class, **more}
    if count is not None:
        exactly["count"] = count
    if selector:
        exactly["selectors"] = [{"cel": {"expression": selector}}]
    amounts = {key: value for key, value in (("memory", memory), ("cores", cores)) if value is not None}
    if amounts:
        exactly["capacity"] = {"requests": amounts}
    return {"name": name, "exactly": exactly}


def part(memory="4Gi", cores="0", **more):
    return request(memory=memory, cores=cores, **more)


def opaque(driver, **parameters):
    """An entry of a claim's `config`."""
    return {"opaque": {"driver": driver, "parameters": parameters}}


def claim(name, *requests, annotations=None, **devices):
    metadata = {"name": name, "annotations": annotations or {}}
    spec = {"devices": {"requests": list(requests), **devices}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata, "spec": spec}


def template(name, *requests, annotations=None, **devices):
    item = claim(name, *requests, **devices)
    metadata = {"name": name, "annotations": annotations or {}}
    return {**item, "kind": "ResourceClaimTemplate", "metadata": metadata, "spec": {"spec": item["spec"]}}


def device_class(name, selector, *, annotations=None, **spec):
    metadata = {"name": name, "annotations": annotations or {}}
    spec = {"selectors": [{"cel": {"expression": selector}}], **spec}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": metadata, "spec": spec}


def pod(name="", *, claims=(), templates=(), gated=True, annotations=None, labels=None, resources=None, **spec):
    """A pod that uses claims by name and templates by name. `gated` says that hami-dra is to place it."""
    entries = [{"name": f"c{i}", "resourceClaimName": each} for i, each in enumerate(claims)]
    entries += [{"name": f"t{i}", "resourceClaimTemplateName": each} for i, each in enumerate(templates)]
    used = [{"name": entry["name"]} for entry in entries]
    container = {"name": "main", "image": "none", "resources": {**(resources or {}), "claims": used}}
    labels = {**({"hami.io/dra": "true"} if gated and entries else {}), **(labels or {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name or f"pod-{next(_NUMBERS)}", "labels": labels, "annotations": annotations or {}},
        "spec": {"containers": [container], **({"resourceClaims": entries} if entries else {}), **spec},
    }


def cpu(amount):
    return {"requests": {"cpu": amount}}


def legacy_pod(name="", *, annotations=None, labels=None, **limits):
    """`legacy_pod(gpu=1, gpumem=7500)`: as for HAMi, with vendor resources in the limits."""
    amounts = {f"nvidia.com/{key.replace('_', '-')}": str(value) for key, value in limits.items()}
    return pod(name, annotations=annotations, labels=labels, resources={"limits": amounts})


def deployment(name, replicas, like):
    """A Deployment of pods like the one given."""
    labels = {**like["metadata"]["labels"], "app": name}
    metadata = {"labels": labels, "annotations": like["metadata"]["annotations"]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": metadata, "spec": like["spec"]},
        },
    }


def jobset(name, members, **options):
    """A leader and workers, two Jobs, in one gang by labels: JobSet 0.12 knows no gangs. `options`: of the pods."""
    item = pod("ignored", labels={NAME_LABEL: name, MIN_AVAILABLE_LABEL: str(members)}, **options)

    def replicated(role, count):
        spec = {**item["spec"], "restartPolicy": "OnFailure"}
        pods = {"metadata": {"labels": item["metadata"]["labels"]}, "spec": spec}
        job = {"parallelism": count, "completions": count, "template": pods}
        return {"name": role, "replicas": 1, "template": {"spec": job}}

    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {"replicatedJobs": [replicated("leader", 1), replicated("worker", members - 1)]},
    }


def priority_class(name, value, **more):
    body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
    return {**body, "value": value, **more}


def budget(name, app, least):
    spec = {"selector": {"matchLabels": {"app": app}}, "minAvailable": least}
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name}, "spec": spec}
