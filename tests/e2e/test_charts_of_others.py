"""The charts of vLLM's production-stack and Xinference, rendered with our values, on a real control plane: shares as asked."""

import pytest
import yaml

from tests.e2e.chart_story import ROOT
from tests.e2e.lab import T4

LARGE = {"cpu": "96", "memory": "512Gi"}


@pytest.fixture
def install(lab, helm):
    """`install(chart, values)`: what `helm install models` creates; services stay away, their node ports are the cluster's."""

    def applied(chart, values):
        (archive,) = (ROOT / "tests/charts").glob(f"{chart}-*.tgz")
        code, out, err = helm("template", "models", archive, "-n", lab.namespace, "-f", ROOT / "examples" / values)
        assert code == 0, err
        lab.create(*[each for each in yaml.safe_load_all(out) if each and each["kind"] != "Service"])

    return applied


def taken(lab, workload):
    """Of each pod of a Deployment: its node, and of each card what it consumes."""
    claims = {each["metadata"]["uid"]: each for each in lab.claims()}
    found = []
    for pod in lab.pods():
        if pod["metadata"]["name"].startswith(f"models-{workload}"):
            results = [
                result
                for claim in claims.values()
                for user in claim["status"].get("reservedFor", ())
                if user["uid"] == pod["metadata"]["uid"]
                for result in claim["status"]["allocation"]["devices"]["results"]
            ]
            found.append([(each["pool"], each["device"], each["consumedCapacity"]) for each in results])
    return found


def test_production_stack(lab, install):
    lab.machines("dgx-a100", "large", allocatable=LARGE)
    install("vllm-stack", "vllm/production-stack-values.yaml")
    lab.api.wait_for("four engines and the router to run", lambda: running(lab) == 5, seconds=90)
    [first], [second] = taken(lab, "qwen-small")
    [[embedding]] = taken(lab, "embedding")
    for (_, _, amounts), asked in ((first, ("7500Mi", "30")), (second, ("7500Mi", "30")), (embedding, ("40Gi", "50"))):
        assert (amounts["memory"], amounts["cores"]) == asked
    # packed with the first of them, or with the other model if that came before
    assert len({device for _, device, _ in (first, second, embedding)}) == 2
    [large] = taken(lab, "qwen-72b")
    assert len({device for _, device, _ in large}) == 4
    assert lab.overcommitted() == []


def test_xinference(lab, install):
    lab.machines(T4, "n0")
    install("xinference", "xinference/values.yaml")
    lab.api.wait_for("two workers and the supervisor to run", lambda: running(lab) == 3, seconds=90)
    workers = taken(lab, "xinference-worker")
    assert [amounts["cores"] for [(_, _, amounts)] in workers] == ["40", "40"]
    [[(_, _, amounts)]] = taken(lab, "xinference-supervisor")
    assert amounts["cores"] == "20"
    assert lab.overcommitted() == []


def running(lab):
    return len([each for each in lab.pods() if each["status"].get("phase") == "Running"])
