"""Values of the chart: lists of all drivers, numbers of a file, updates and drains that can proceed, releases that must not be."""

import json
import re
from pathlib import Path

import pytest
import yaml

from tests.support.chart_fixtures import template

CHART = Path(__file__).resolve().parents[3] / "charts/hami-dra"
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
VENDORS = sorted(VALUES["vendors"])


def named(objects, kind, name):
    [one] = [raw for raw in objects if raw["kind"] == kind and raw["metadata"]["name"] == name]
    return one


def refused_paths(helm, folder, wrong):
    """The paths that Helm says the schema refuses, of values that are all wrong at once: {"a.b": value}."""
    values = {}
    for path, value in wrong.items():
        *outer, last = path.split(".")
        inner = values
        for name in outer:
            inner = inner.setdefault(name, {})
        inner[last] = value
    _, _, err = template(helm, folder, values)
    refused = {where.strip("/").replace("/", ".") for where in re.findall(r"at '([^']*)'", err)}
    for where, missing in re.findall(r"at '([^']*)': missing propert(?:y|ies) ((?:'[^']+'(?:, )?)+)", err):
        refused |= {
            f"{where.strip('/')}/{name}".strip("/").replace("/", ".") for name in re.findall(r"'([^']+)'", missing)
        }
    return refused


def accepted_paths(helm, folder, wrong):
    refused = refused_paths(helm, folder, wrong)
    return [path for path in wrong if not any(each == path or each.startswith(f"{path}.") for each in refused)]


def test_lists_of_all_drivers_and_numbers_of_a_file(render):
    """Numbers of a file are floats for Helm: 1e+06."""
    more = {
        "tolerations": [{"operator": "Exists"}],
        "hostPaths": [{"path": "/opt/x"}],
        "extraArgs": ["--health-every=30s"],
        "extraEnv": [{"name": "A", "value": "b"}],
        "sharing": {"slots": 1_000_000, "cardSlices": 4},
        "monitorInterval": 3600,
        "terminationGracePeriodSeconds": 1_000_000,
    }
    vendors = {name: {"enabled": True, "extraArgs": ["--discover-every=1m"]} for name in VENDORS}
    objects = render({"driver": more, "vendors": vendors, "log": {"verbosity": 2}, "webhook": {"port": 40000}})
    for vendor in VENDORS:
        pod = named(objects, "DaemonSet", f"hami-dra-driver-{vendor}")["spec"]["template"]["spec"]
        own = VALUES["vendors"][vendor]
        assert pod["tolerations"] == [*more["tolerations"], *own["tolerations"]]
        mounted = {volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
        assert {"/opt/x", *(each["path"] for each in own["hostPaths"])} <= mounted
        [container] = pod["containers"]
        assert {"--health-every=30s", "--discover-every=1m", "--slots=1000000", "--monitor-interval=3600"} <= {
            *container["args"]
        }
        assert {"name": "A", "value": "b"} in container["env"]
        assert pod["terminationGracePeriodSeconds"] == 1_000_000
    assert "e+0" not in json.dumps(objects)


def test_updates_proceed_on_two_nodes(render):
    production = yaml.safe_load((CHART / "values-production.yaml").read_text())
    controller = named(render(production), "Deployment", "hami-dra-controller")["spec"]
    assert controller["strategy"]["rollingUpdate"]["maxUnavailable"] >= 1
    webhook = named(render({"webhook": {"hostNetwork": True}}), "Deployment", "hami-dra-webhook")["spec"]
    assert webhook["strategy"]["rollingUpdate"]["maxUnavailable"] == 1


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"controller": {"podDisruptionBudget": {"minAvailable": 2}}}, "minAvailable=2 with 2 replicas stops every drain"),
        ({"webhook": {"podDisruptionBudget": {"minAvailable": "100%"}}}, "minAvailable=100% with 2 replicas stops every drain"),
        ({"webhook": {"replicas": 3, "podDisruptionBudget": {"minAvailable": "67%"}}}, "at most 2 replicas may have to stay"),
    ],
)  # fmt: skip
def test_a_budget_that_blocks_every_drain_is_refused(helm, tmp_path, values, words):
    code, _, err = template(helm, tmp_path, values)
    assert code != 0
    assert words in err


@pytest.mark.parametrize(
    ("namespace", "values", "words"),
    [
        ("hami-dra-probe", {}, "is the fence's own"),
        ("kube-system", {"namespace": {"create": True}}, "would make all of kube-system privileged"),
        ("default", {"namespace": {"create": True}}, "would make all of default privileged"),
    ],
)
def test_namespaces_of_others_are_refused(helm, tmp_path, namespace, values, words):
    code, _, err = template(helm, tmp_path, values, "--namespace", namespace)
    assert code != 0
    assert words in err


def test_the_job_of_uninstall_runs_on_a_full_cluster_of_tainted_nodes(render):
    pod = named(render({}), "Job", "hami-dra-uninstall")["spec"]["template"]["spec"]
    assert pod["priorityClassName"] == "system-cluster-critical"
    assert pod["tolerations"] == [{"operator": "Exists", "effect": "NoSchedule"}]
    assert "--yes" in pod["containers"][0]["args"]


WRONG = {
    "controller.devicePolicy": ["foo", "spread,", "first-fit,spread", ""],
    "controller.packingWeights": ["foo=1", "theta", "theta=-1", "theta=a"],
    "controller.manage": [["Foo_Bar"], [""], ["a..b"]],
    "driver.devicePolicy": ["foo"],
    "driver.sharing.memoryScaling": ["0", "0/1", "0.0", "a", 0, -1],
    "driver.sharing.slots": [0, 1.5, "10"],
    "driver.taintEffects": [{"bogus": "NoSchedule"}, {"lost": "no"}],
    "image.tag": ["a b", "-x", "a" * 129],
    "image.repository": ["a b", "", "Upper/case"],
    "schedulerNames": [[], [""], ["A b"]],
    "controller.podLabels": [{"app.kubernetes.io/component": "x"}, {"app.kubernetes.io/name": "x"}],
    "webhook.podLabels": [{"app.kubernetes.io/component": "x"}],
    "webhook.url": ["https://h:1/other", "http://h/mutate", "https:///mutate", "https://a b/mutate"],
    "webhook.port": [0, 65536, "8443", 1.5],
    "controller.probeImage": ["", "a b"],
    "controller.priorityClassName": ["A_B"],
}


@pytest.mark.parametrize("number", range(max(map(len, WRONG.values()))))
def test_values_that_a_program_or_kubernetes_would_refuse_are_refused_at_once(helm, tmp_path, number):
    wrong = {path: values[number] for path, values in WRONG.items() if number < len(values)}
    assert accepted_paths(helm, tmp_path, wrong) == []


def leaves(schema, values, path=""):
    """(path, schema) of the values that an operator sets; the vendors' blocks may lack what `driver` says."""
    for name, value in values.items():
        below = schema["properties"][name]
        if isinstance(value, dict) and "properties" in below:
            yield from leaves(below, value, f"{path}{name}.")
        elif path != "vendors.":
            yield f"{path}{name}", below


OTHERS = {
    "boolean": [5, "true", []],
    "integer": ["5", 1.5, True],
    "string": [5, True, []],
    "array": ["a", 5, True],
    "object": ["a", 5, []],
}


@pytest.mark.parametrize("number", range(3))
def test_no_value_is_of_another_type(helm, tmp_path, number):
    wrong = {}
    for path, schema in leaves(SCHEMA, VALUES):
        place = SCHEMA["definitions"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
        kind = place.get("type", "string" if "enum" in place else "")
        if isinstance(kind, str) and kind:
            wrong[path] = OTHERS[kind][number]
    assert len(wrong) > 80
    assert accepted_paths(helm, tmp_path, wrong) == []


def test_no_value_can_be_taken_away(helm, tmp_path):
    """As `null` in a values file does."""
    assert accepted_paths(helm, tmp_path, {path: None for path, _ in leaves(SCHEMA, VALUES)}) == []
