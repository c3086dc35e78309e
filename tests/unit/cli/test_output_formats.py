"""Options that kubectl has, too, mean the same in every command that reads: -o, --no-headers, -l, -n, -A, -w."""

import json

import pytest
import yaml

from controller.cli.main import command_names, loaded
from tests.support.commands import Typed
from tests.support.manifests import claim, cluster, part, pod
from tests.support.served import Served
from tests.unit.cli.test_status import QUOTA, holder

READING = [
    "status",
    "status --by node",
    "status --by namespace",
    "status --quota",
    "status --pending",
    "explain pod-waits",
    "doctor",
    "topology n1",
    "topology -l pool=a",
    "whatif --device-policy spread --replace",
    "defrag",
]
"""Commands that read a cluster, or files of one."""
WITHOUT_CLUSTER = ["simulate -f {file}", "slices --list", "slices --machine g4dn.12xlarge", "version --client"]
SHORT = {
    "--output": "-o",
    "--namespace": "-n",
    "--all-namespaces": "-A",
    "--selector": "-l",
    "--watch": "-w",
    "--filename": "-f",
}
"""As in kubectl."""


@pytest.fixture
def hami_dra(capsys):
    return Typed(capsys)


@pytest.fixture
def state():
    nodes = [*cluster("n1"), *cluster("n2")]
    for each in nodes:
        if each["kind"] == "Node":
            each["metadata"]["labels"] = {"pool": "a" if each["metadata"]["name"] == "n1" else "b"}
    waits = [claim("huge", part("900Gi")), pod("pod-waits", "huge")]
    return [*nodes, *holder("a", "gpu-0", namespace="default"), QUOTA, *waits]


@pytest.fixture
def file(state, tmp_path):
    path = tmp_path / "state.yaml"
    path.write_text(yaml.safe_dump_all(state))
    return path


@pytest.mark.parametrize("command", [*(f"{each} -f {{file}}" for each in READING), *WITHOUT_CLUSTER])
def test_each_command_prints_each_format(hami_dra, file, command):
    words = command.format(file=file).split()
    results = {output: hami_dra(*words, "-o", output) for output in ("table", "wide", "json", "yaml", "name")}
    assert {result.code for result in results.values()} <= {0, 1}, results["table"].stderr
    assert len({result.code for result in results.values()}) == 1
    document = json.loads(results["json"].stdout)
    assert list(yaml.safe_load_all(results["yaml"].stdout)) in (
        [document],
        document.get("items") if isinstance(document, dict) else None,
    )
    lines = results["name"].stdout.splitlines()
    assert lines == list(dict.fromkeys(lines))
    assert all(line.split() == [line] for line in lines)
    table, wide = (results[each].stdout.splitlines() for each in ("table", "wide"))
    assert len(table) <= len(wide)
    assert not any(line.endswith(" ") for line in (*table, *wide))


@pytest.mark.parametrize("command", [each for each in READING if each != "doctor"])  # which prints no table
def test_without_headers_is_the_rest_unchanged(hami_dra, file, command):
    words = [*command.split(), "-f", file]
    with_headers = hami_dra(*words).stdout.splitlines()
    without = hami_dra(*words, "--no-headers").stdout.splitlines()
    assert len(without) < len(with_headers)


def test_a_cluster_is_read_as_files_are(hami_dra, state, file, tmp_path):
    """What differs: the version of Kubernetes, and whether somebody leads."""
    with Served(state) as served:
        config = served.kubeconfig(tmp_path)
        for command in ("status", "status --by node", "topology n1", "topology -l pool=a", "status -l pool=b -o name"):
            words = command.split()
            live, read = hami_dra(*words, "--kubeconfig", config), hami_dra(*words, "-f", file)
            assert (live.code, live.stdout) == (0, read.stdout), command


def test_labels_choose_nodes(hami_dra, file):
    for command in ("status", "topology"):
        found = hami_dra(command, "-f", file, "-l", "pool=b", "-o", "name").stdout
        assert {"n1", "n2"} & set(found.replace("/", " ").split()) == {"n2"}
        assert "--selector: label selector" in hami_dra(command, "-f", file, "-l", "a in (").stderr


@pytest.mark.parametrize("command", command_names())
def test_options_of_kubectl_have_its_names(command):
    options = _options(command)
    for long, short in SHORT.items():
        if long in options:
            assert short in options, f"{command} {long}"


def test_the_namespace_of_the_installation_is_an_option_of_its_own():
    for command in ("status", "doctor", "uninstall", "version"):
        assert "--install-namespace" in _options(command)


def _options(command):
    found = loaded(command)
    return {
        name
        for param in found.get_params(found.make_context(command, [], resilient_parsing=True))
        for name in (*param.opts, *param.secondary_opts)
    }
