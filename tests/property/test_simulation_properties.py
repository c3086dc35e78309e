"""Whatever stands in a manifest: a simulation gives a report, or refuses the file with its name, the document and the object."""

import copy
import json

from hypothesis import given
from hypothesis import strategies as st

from controller.insight.manifests import READ, BadManifest
from controller.insight.simulation import SimulationSettings, simulate
from tests.support.manifests import claim, cluster, documents, part, pod, template, workload

LEGACY = {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 30}
GIVEN = json.loads(
    json.dumps(
        [
            *cluster("n1"),
            claim("shared", part(), part(memory="1Gi")),
            template("t", {"name": "r", "firstAvailable": [{"name": "a", "deviceClassName": "vgpu", "count": 1}]}),
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "DeviceTaintRule",
                "metadata": {"name": "rule"},
                "spec": {"deviceSelector": {"driver": "d"}, "taint": {"key": "k", "effect": "NoSchedule"}},
            },
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default", "labels": {}}},
            pod("a", "shared", limits={"cpu": "1"}),
            pod("b", "shared", "template:t", annotations={"hami.io/gpu-scheduler-policy": "binpack"}),
            pod("c", limits=LEGACY, nodeSelector={}, tolerations=[{"operator": "Exists"}]),
            workload(
                "Deployment", "d", {"containers": [{"name": "main", "resources": {"limits": LEGACY}}]}, replicas=2
            ),
            workload("DaemonSet", "e"),
            workload("Job", "f", parallelism=2, completions=1),
        ]
    )
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(
        ["", "x", "1Gi", "-1", "1e400", "many", "spread", "Exists", "\u0000", "n1", "a" * 300, "device.driver"]
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["name", "x", "cel", "value"]), inner),
    max_leaves=4,
)


def places(value, path=()):
    """Every path below an object, but for what says which kind it is."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        if (*path, key) not in {("kind",), ("apiVersion",)}:
            yield (*path, key)
            yield from places(entry, (*path, key))


@st.composite
def spoilt(draw):
    raws = copy.deepcopy(GIVEN)
    for _ in range(draw(st.integers(1, 3))):
        raw = draw(st.sampled_from(raws))
        *way, last = draw(st.sampled_from(list(places(raw)) or [("metadata",)]))
        place = raw
        for step in way:
            place = place[step]
        if draw(st.booleans()) and isinstance(place, dict):
            place.pop(last, None)
        else:
            place[last] = draw(VALUES)
    return raws


@given(spoilt())
def test_a_report_or_a_refusal_that_names_the_place(raws):
    try:
        report = simulate(documents(raws), SimulationSettings())
    except BadManifest as error:
        message = str(error)
        assert message.startswith("in.yaml, document "), message
        assert any(f": {kind.name}" in message for kind in READ), message
        return
    document = report.document()
    assert json.loads(json.dumps(document)) == document
    seen = [entry["pod"] for entry in (*document["placements"], *document["unplaced"])]
    assert len(seen) == len(set(seen))
    for entry in document["unplaced"]:
        assert entry["message"]
        assert entry["reasons"] or entry["error"] or "0 nodes" in entry["message"]
    for entry in document["placements"]:
        for held in entry["claims"]:
            assert held["allocation"]["devices"]["results"] is not None


@given(st.permutations(GIVEN))
def test_the_order_of_what_is_no_pod_does_not_matter(raws):
    pods = [raw for raw in raws if raw["kind"] in {"Pod", "Deployment", "DaemonSet", "Job"}]
    others = [raw for raw in raws if raw not in pods]
    once, again = (
        simulate(documents(given), SimulationSettings()).document()
        for given in ([*pods, *others], [*others[::-1], *pods])
    )
    for document in (once, again):
        for entry in document["placements"]:
            for held in entry["claims"]:
                held["allocation"].pop("allocationTimestamp")
                for result in held["allocation"]["devices"]["results"]:
                    result.pop("shareID", None)
    assert once == again
