"""Objects that a hostile tenant, or a publisher who lies, may store in a cluster: as bytes, as the API server takes them.

Used by tests that want many of them, of all kinds (`assortment`), or one kind alone. Pure: nothing is sent. A tenant with the `edit` role may create
all but the slices, which need whoever may write ResourceSlices. Names carry the number that the caller gives, so that any
number of them lie side by side. Objects refer to one another where that is the attack (pods and the claim they share): each
function returns them in an order in which they can be created.
"""

import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

CLASS = "nvidia-vgpu.hami.io"
DRIVER = "nvidia.hami.io"
DEEPEST = 9_990
"""The API server takes 10,000 levels in an object; a list adds two."""
_RAW = "@raw@"
"""Stands in a document where bytes come that Python's JSON would not write."""

_NOWHERE = {"example.com/nowhere": "x"}
"""Pods without a claim stay pending, so that no kubelet of a test need read them."""

Json = dict[str, Any]


class Hostile(NamedTuple):
    kind: str
    """Plural of the resource: pods, resourceclaims, resourceclaimtemplates, resourceslices."""
    name: str
    body: bytes


def _object(kind: str, document: Json, raw: bytes = b"") -> Hostile:
    versions = {"pods": ("v1", "Pod"), "resourceslices": ("resource.k8s.io/v1", "ResourceSlice")}
    claims = {"resourceclaims": "ResourceClaim", "resourceclaimtemplates": "ResourceClaimTemplate"}
    version, name = versions.get(kind, ("resource.k8s.io/v1", claims.get(kind, "")))
    text = json.dumps({"apiVersion": version, "kind": name, **document}).encode()
    return Hostile(kind, document["metadata"]["name"], text.replace(json.dumps(_RAW).encode(), raw))


# --- parts -----------------------------------------------------------------------------------------------------------


def deep(levels: int = DEEPEST) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


FREE_FORM = (
    deep(1_700),
    b'{"a":' + b"[" * 5_000 + b"]" * 5_000 + b"}",
    rb'{"a":"\ud800"}',
    b'{"a":"\xff\xfe"}',
    rb'{"a":"\u0000","\u0000":1}',
    b'{"a":' + b"9" * 300 + b',"b":1e308,"c":-0.0e-999}',
    b'{"a":1,"a":2,"a":{"a":3}}',
)
"""What parameters may hold, up to 10 KiB: stored as sent. (Numbers beyond a float64 make kube-apiserver 1.37 drop the connection.)"""
FIELDS = (deep(), rb'{"f:\ud800":{}}', b'{"f:\xff":{}}', b'{"f:a":' + b"7" * 3_000 + b"}")
"""What managedFields may hold."""
AMOUNTS = ("8E", "8Ei", "1e18", "1e400", "9223372036854775807", "1n", "0")
VALUES = (
    "",
    " ",
    "\u0000",
    "nan",
    "9" * 5_000,
    "binpack,spread," * 500,
    "device.driver == 'x'",
    "$(reboot)",
    "{" * 400,
    "٤",
)
"""For annotations that choose a policy."""
POLICIES = (
    "hami.io/node-scheduler-policy",
    "hami.io/gpu-scheduler-policy",
    "hami.io/device-scoring-weights",
    "hami.io/packing-weights",
    "hami.io/gpu-topology",
    "nvidia.com/use-gpuuuid",
    "nvidia.com/numa-bind",
)
_LETTERS = "[" + ",".join("1" for _ in range(46)) + "]"
COSTLY = (
    f"{_LETTERS}.all(a, {_LETTERS}.all(b, {_LETTERS}.all(c, a + b + c > 0))) && "
    "device.attributes['hami.io'].uuid != 'x{}'"
)
"""Within Kubernetes' cost limit, and another answer for each device."""


def _request(selectors: Sequence[str] = (), **amounts: str) -> Json:
    exactly: Json = {"deviceClassName": CLASS, "capacity": {"requests": amounts or {"memory": "1Gi", "cores": "0"}}}
    if selectors:
        exactly["selectors"] = [{"cel": {"expression": each}} for each in selectors]
    return {"name": "gpu", "exactly": exactly}


def _claim(name: str, *requests: Json, parameters: bool = False, driver: str = DRIVER, **metadata: Any) -> Json:
    devices: Json = {"requests": list(requests or [_request()])}
    if parameters:
        devices["config"] = [{"opaque": {"driver": driver, "parameters": _RAW}}]
    return {"metadata": {"name": name, **metadata}, "spec": {"devices": devices}}


def _pod(name: str, claim: str = "", *, resources: Sequence[Json] = ({},), **metadata: Any) -> Json:
    labels = {"hami.io/dra": "true"} if claim else {}
    used = {"claims": [{"name": "gpu"}]} if claim else {}
    containers = [{"name": f"c{n}", "image": "none", "resources": {**each, **used}} for n, each in enumerate(resources)]
    spec: Json = {"containers": containers, "nodeSelector": {} if claim else _NOWHERE}
    if claim:
        spec["resourceClaims"] = [{"name": "gpu", "resourceClaimName": claim}]
    return {"metadata": {"name": name, "labels": labels, **metadata}, "spec": spec}


# --- kinds of attack -------------------------------------------------------------------------------------------------


def undecodable_pod(number: int) -> list[Hostile]:
    entry = {"manager": "x", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1", "fieldsV1": _RAW}
    entry["time"] = "2026-01-01T00:00:00Z"
    return [_object("pods", _pod(f"fields-{number}", managedFields=[entry]), FIELDS[number % len(FIELDS)])]


def undecodable_claim(number: int) -> list[Hostile]:
    """Of our driver and of one that does not exist."""
    driver = (DRIVER, "nobody.example.com")[number % 2]
    name, raw = f"params-{number}", FREE_FORM[number % len(FREE_FORM)]
    return [
        _object("resourceclaims", _claim(name, parameters=True, driver=driver), raw),
        _object("pods", _pod(name, name)),
    ]


def undecodable_template(number: int) -> list[Hostile]:
    name = f"template-{number}"
    spec = _claim(name, parameters=True)["spec"]
    return [
        _object(
            "resourceclaimtemplates",
            {"metadata": {"name": name}, "spec": {"spec": spec}},
            FREE_FORM[number % len(FREE_FORM)],
        )
    ]


def protected_claim(number: int) -> list[Hostile]:
    """Claims that look as if a controller had died over them."""
    metadata = {"finalizers": ["resource.kubernetes.io/delete-protection"]}
    return [_object("resourceclaims", _claim(f"protected-{number}", **metadata))]


def huge_annotation(number: int) -> list[Hostile]:
    """A pod as large as annotations may make it."""
    return [_object("pods", _pod(f"huge-{number}", annotations={"example.com/notes": "x" * 250_000}))]


def converted_request(number: int) -> list[Hostile]:
    """H1: an annotation that nests, for a template that is not there."""
    nested = '{"alternatives":[' * 2_000 + "]}" * 2_000
    document = _pod(f"converted-{number}", annotations={"hami.io/converted-request": nested})
    document["metadata"]["labels"] = {"hami.io/dra": "true"}
    document["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": f"none-{number}"}]
    return [_object("pods", document)]


def costly_selectors(number: int) -> list[Hostile]:
    """C3: twenty selectors, each dear and with an answer of its own for each device."""
    name = f"costly-{number}"
    wanted = _request([COSTLY.format(f"{number}-{each}") for each in range(20)])
    return [_object("resourceclaims", _claim(name, wanted)), _object("pods", _pod(name, name))]


def impossible_claim(number: int, pods: int = 20) -> list[Hostile]:
    """H2: many pods that wait for one claim that nobody can ever meet."""
    name = f"impossible-{number}"
    claim = _object("resourceclaims", _claim(name, _request(memory="1000Ti", cores="0")))
    return [claim, *(_object("pods", _pod(f"{name}-{each}", name)) for each in range(pods))]


def absurd_amounts(number: int) -> list[Hostile]:
    name, amount = f"absurd-{number}", AMOUNTS[number % len(AMOUNTS)]
    claim = _object(
        "resourceclaims", _claim(name, _request(memory=amount, cores=AMOUNTS[(number // 2) % len(AMOUNTS)]))
    )
    resources = [{"requests": {"memory": "8E", "cpu": "1k"}}, {"requests": {"memory": "8E"}}]
    return [claim, _object("pods", _pod(name, name, resources=resources))]


def policy_annotations(number: int) -> list[Hostile]:
    name = f"policy-{number}"
    annotations = {key: VALUES[(number + place) % len(VALUES)] for place, key in enumerate(POLICIES)}
    return [_object("resourceclaims", _claim(name)), _object("pods", _pod(name, name, annotations=annotations))]


def lying_slice(number: int, node: str = "liar", others: Sequence[str] = ("liar",)) -> list[Hostile]:
    """H4: devices in the pools of other nodes, with a newer generation, wrong counts and absurd amounts."""
    amount = AMOUNTS[number % len(AMOUNTS)]
    device: Json = {
        "allowMultipleAllocations": True,
        "attributes": {
            "hami.io/uuid": {"string": f"GPU-lie-{number}"},
            "hami.io/index": {"int": (2**63 - 1, -(2**63), 0)[number % 3]},
            "hami.io/productName": {"string": "x'\"\u0000\n"[: number % 6]},
        },
        "capacity": {"memory": {"value": amount}, "cores": {"value": amount}, "shares": {"value": "1e400"}},
    }
    spec = {
        "driver": DRIVER,
        "nodeName": node,
        "pool": {
            "name": others[number % len(others)],
            "generation": (999_999, 2**63 - 1, 1)[number % 3],
            "resourceSliceCount": (1, 2**31, 3)[number % 3],
        },
        "devices": [{"name": f"gpu-{index}", **device} for index in range(4)],
    }
    return [
        _object("resourceslices", {"metadata": {"name": f"lie-{number}", "labels": {"hostile": "lie"}}, "spec": spec})
    ]


OF_TENANTS: tuple[tuple[Callable[[int], list[Hostile]], int], ...] = (
    (undecodable_pod, 10),
    (undecodable_claim, 10),
    (undecodable_template, 6),
    (protected_claim, 4),
    (huge_annotation, 6),
    (converted_request, 6),
    (costly_selectors, 2),
    (impossible_claim, 1),
    (absurd_amounts, 8),
    (policy_annotations, 8),
)
"""What tenants do, and how often among a hundred or so."""


def assortment(count: int, seed: int = 0) -> Iterator[Hostile]:
    """Yield about `count` objects of a tenant, of all kinds, mixed."""
    dice = random.Random(seed)
    kinds = [make for make, weight in OF_TENANTS for _ in range(weight)]
    made = 0
    # each kind once first, so that none is missing from a small assortment
    order = [make for make, _ in OF_TENANTS]
    while made < count:
        make = order.pop(0) if order else dice.choice(kinds)
        group = make(made)
        made += len(group)
        yield from group
