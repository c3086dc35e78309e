"""`hami-dra simulate --device-policy first-fit` against the answers of the Kubernetes allocator.

Its table of cases as one would write it into a file: one node, the slices, the classes, claims that hold what is in use, and
a pod with the claims.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from controller.allocation.features import GATES, FeatureGates
from controller.insight.simulation import SimulationSettings, simulate
from hami_dra.api.quantity import Quantity
from hami_dra.kube.documents import Document

CASES = [json.loads(line) for line in (Path(__file__).parent / "allocator_cases.jsonl").read_text().splitlines()]


def documents(case: Mapping[str, Any]) -> Iterator[Document]:
    claims = renamed(case["claims"] or [])
    entries = [
        {"name": f"c{number}", "resourceClaimName": claim["metadata"]["name"]} for number, claim in enumerate(claims)
    ]
    pod = {"metadata": {"name": "pod"}, "spec": {"resourceClaims": entries, "containers": [{"name": "main"}]}}
    objects = [
        ("Node", [case["node"]]),
        ("ResourceSlice", case["slices"] or []),
        ("DeviceClass", case["classes"] or []),
        ("ResourceClaim", [*claims, *in_use(case)]),
        ("Pod", [pod]),
    ]
    versions = {"Node": "v1", "Pod": "v1"}
    everything = (
        {"apiVersion": versions.get(kind, "resource.k8s.io/v1"), "kind": kind, **raw}
        for kind, raws in objects
        for raw in raws
    )
    return (Document(Path("case.yaml"), index, raw) for index, raw in enumerate(everything, 1))


def renamed(claims: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One case gives two claims one name."""
    return [
        {**claim, "metadata": {**claim["metadata"], "name": f"{claim['metadata']['name']}-{number}"}}
        for number, claim in enumerate(claims)
    ]


def in_use(case: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Claims of nobody, without class and node selector."""
    capacity = dict(case["aggregatedCapacity"])
    held = [(device, {}) for device in case["allocatedDevices"]]
    for share in case["allocatedShared"]:
        device, _, share_id = share.rpartition("/")
        held.append((device, {"shareID": share_id, "consumedCapacity": capacity.pop(device, {})}))
    held += [
        (device, {"shareID": "5f2b0a4e-0000-4000-8000-000000000000", "consumedCapacity": consumed})
        for device, consumed in capacity.items()
    ]
    for number, (device, more) in enumerate(held):
        driver, rest = device.split("/", 1)
        pool, _, name = rest.rpartition("/")
        result = {"request": "r", "driver": driver, "pool": pool, "device": name, **more}
        yield {
            "metadata": {"name": f"held-{number}"},
            "spec": {},
            "status": {"allocation": {"devices": {"results": [result]}}},
        }


def comparable(allocation: Mapping[str, Any]) -> Any:
    """Results in any order, shareID there or not, quantities by amount, no timestamp."""
    results = []
    for result in allocation["devices"]["results"]:
        rest = {key: value for key, value in result.items() if key not in {"shareID", "consumedCapacity"}}
        consumed = {name: Quantity.parse(amount).nanos for name, amount in result.get("consumedCapacity", {}).items()}
        results.append({**rest, "shared": "shareID" in result, "consumed": consumed})
    return {
        "results": sorted(results, key=lambda result: json.dumps(result, sort_keys=True)),
        "config": allocation["devices"].get("config") or [],
        "nodeSelector": allocation.get("nodeSelector"),
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_simulated_first_fit_is_upstream(case):
    wanted = {gate for feature in case["features"] for gate in feature.split("+")}
    gates = FeatureGates.parse(",".join(f"{gate}={str(gate in wanted).lower()}" for gate in GATES))
    report = simulate(documents(case), SimulationSettings(first_fit=True, gates=gates))
    if case["results"]:
        (placement,) = report.placements
        assert placement["node"] == case["node"]["metadata"]["name"]
        expected = [comparable({"devices": {"results": []}, **theirs}) for theirs in case["results"]]
        assert [comparable(claim["allocation"]) for claim in placement["claims"]] == expected
    elif case["claims"]:
        (refused,) = report.unplaced
        assert bool(refused["error"]) == bool(case["error"]), refused
    else:
        assert report.placements[0]["claims"] == []
