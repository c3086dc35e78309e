"""hami-dra as a whole: the list of commands, help, the kubectl plugin, completion, versions, errors, namespaces."""

import re
import subprocess
import sys
from enum import Enum
from importlib.metadata import version as package_version
from pathlib import Path

import pytest
import typer
import yaml

from controller.cli import completion, completion_values
from controller.cli.command import blocks, read_plain_values
from controller.cli.connection import Connection
from controller.cli.main import COMMANDS
from controller.cli.namespace_options import check_namespace, listed_namespace, pod_namespace
from controller.cli.tables import TextLayout, TextTable
from hack.cli_reference import PATH, cli_reference
from hack.conventions import CORE
from hami_dra.api import names
from tests.support.commands import Typed
from tests.support.manifests import cluster, documents, pod
from tests.support.served import Served

ROOT = Path(__file__).resolve().parents[3]
HEAVY = {"numpy", "grpc", "aiohttp", "cryptography", "pydantic", "rich", "kubernetes", "jinja2", "yaml"}


@pytest.fixture
def hami_dra(capsys):
    return Typed(capsys)


def imported_by(*words):
    """Return the top-level modules, and those of the project in full, that a command imports."""
    code = f"import sys; from controller.cli.main import run\ntry: run({list(words)!r})\nfinally: print(*sys.modules, file=sys.stderr)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    return {part for name in ended.stderr.split() for part in (name, name.partition(".")[0])}


@pytest.mark.parametrize("words", [["--help"], ["__complete", ""], ["--version"]])
def test_the_list_of_commands_imports_nothing_heavy(words):
    assert imported_by(*words) & HEAVY == set()


@pytest.mark.parametrize("words", [["status", "--help"], ["__complete", "status", "--"], ["explain", "--help"]])
def test_help_and_options_of_a_command_import_little(words):
    assert imported_by(*words) & (HEAVY | {"asyncio"}) == set()


def test_completing_a_name_imports_no_vendor_and_no_http_library(tmp_path):
    with Served([*cluster("n1")]) as served:
        imported = imported_by("__complete", "status", "--kubeconfig", str(served.kubeconfig(tmp_path)), "--node", "")
    assert [path for path, _ in served.seen] == ["/api/v1/nodes"]
    assert imported & (HEAVY - {"yaml"} | {"hami_dra.vendors", *CORE}) == set()


@pytest.mark.parametrize(
    ("words", "unused"),
    [
        (["version"], {"pydantic", "numpy", "hami_dra.vendors", *CORE}),
        (
            ["status", "--by", "node", "-o", "wide", "--vendor", "nvidia"],
            {
                "pydantic",
                "prometheus_client",
                "controller.decide",
                "controller.webhook",
                "controller.reconcile",
            },
        ),
        (["explain", "p", "-n", "default"], {"pydantic", "prometheus_client", "controller.reconcile"}),
        (["whatif", "--node-policy", "binpack"], {"pydantic", "prometheus_client", "controller.reconcile"}),
        (["topology", "n1"], {"pydantic", "prometheus_client", *CORE, "controller.webhook"}),
    ],
)
def test_a_command_imports_only_what_it_needs(tmp_path, words, unused):
    with Served([*cluster("n1")]) as served:
        assert imported_by(*words, "--kubeconfig", str(served.kubeconfig(tmp_path))) & unused == set()


def test_simulate_imports_neither_an_http_library_nor_models():
    imported = imported_by(
        "simulate",
        "-f",
        str(ROOT / "tests/golden/simulate/cluster.yaml"),
        "-f",
        str(ROOT / "examples/d-node-spread-gpu-spread.yaml"),
    )
    assert imported & {"pydantic", "aiohttp", "rich.console", "controller.reconcile"} == set()


class Colour(Enum):
    RED, BLUE = "red", "blue"


@pytest.mark.parametrize(
    "kind", [str, int, float, bool, Path, Colour, list[str], list[int], list[Path], list[Colour]], ids=str
)
def test_values_of_options_are_those_that_typer_reads(kind, tmp_path, monkeypatch):
    """With the same errors: `plain_values` only saves the import of pydantic."""
    unreadable = tmp_path / "unreadable"
    unreadable.touch(mode=0)
    words = [
        "red",
        "RED",
        "green",
        "",
        "4",
        "4.5",
        "-1",
        " 4 ",
        "yes",
        "\u0663",
        "../x",
        str(tmp_path),
        str(unreadable),
        "a,b",
    ]
    words += [Colour.BLUE, Path("x"), 3, True, None, ["red", "blue"], [Colour.RED], ["4", "x"], []]
    app = typer.Typer()

    def command(value: kind = None):
        pass

    app.command()(command)
    [param] = [each for each in typer.main.get_command(app).params if each.name == "value"]

    def read(value):
        try:
            return param.process_value(None, value)
        except typer.BadParameter as error:
            return type(error), str(error)

    theirs = [read(word) for word in words]
    read_plain_values([param])
    ours = [read(word) for word in words]
    assert [*map(repr, ours)] == [*map(repr, theirs)]


def test_help_is_plain_with_one_line_for_each_command(hami_dra):
    lines = hami_dra("--help").stdout.splitlines()
    for name, summary in ((name, line) for group in COMMANDS.values() for name, line in group.items()):
        assert [line for line in lines if line.startswith(f"  {name} ") and line.endswith(f"  {summary}")], name
    assert all(len(line) <= 80 for line in lines)
    bare = hami_dra()
    assert (bare.code, bare.stdout.splitlines(), bare.stderr) == (0, lines, "")
    text = hami_dra("status", "--help").stdout
    assert "<bool>" not in text
    assert "\n\n\n" not in text
    assert "  Examples:\n    hami-dra status\n    hami-dra status --by node" in text


@pytest.mark.parametrize(
    "name", [name for group in COMMANDS.values() for name in group if name not in ("driver", "slices")]
)
def test_help_says_device_and_not_card(hami_dra, name):
    """A card is hardware, which the driver finds and slices publish: docs/design/glossary.md."""
    text = hami_dra(name, "--help").stdout
    assert re.findall(r"(?<![-\w])cards?(?![-\w])", text, re.IGNORECASE) == []


def test_values_are_shown_by_what_they_are_and_not_by_classes_of_python():
    text = cli_reference()[PATH]
    assert re.findall(r"<(?:str|int|float|bool|path)>", text, re.IGNORECASE) == []
    for shown in (
        "--node-policy POLICY ",
        "--orphan-age DURATION ",
        "--port NUMBER ",
        "--filename PATH ",
        "--manage DRIVER ",
    ):
        assert shown in text
    library = text.partition("### hami-dra install-library")[2].partition("###")[0]
    assert "--library-folder FOLDER" in library
    assert "--memory-scaling" not in library


def test_as_a_kubectl_plugin_usage_and_examples_say_kubectl_hami(hami_dra, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/usr/local/bin/kubectl-hami", "status"])
    assert hami_dra("status", "--help").stdout.startswith("Usage: kubectl hami status")
    assert "\n    kubectl hami status --by node" in hami_dra("status", "--help").stdout
    assert hami_dra("status", "-n", "a", "-A", "--quota").stderr.startswith("kubectl hami: -n names one")


def test_wrong_words_are_answered_with_the_nearest(hami_dra):
    assert "Did you mean 'status'?" in hami_dra("statsu").stderr
    problem = hami_dra("status", "-o", "yml").stderr
    assert "'yml' is not one of 'table', 'wide', 'json', 'yaml', 'name'" in problem
    assert "Value error" not in problem


def test_the_page_of_commands_is_the_help():
    assert (ROOT / PATH).read_text() == cli_reference()[PATH]


def test_paragraphs_are_wrapped_and_examples_stay():
    assert list(blocks("a\nb\n\nExamples:\n    x\n    y\n\nend")) == [
        ["a", "b"],
        ["Examples:"],
        ["    x", "    y"],
        ["end"],
    ]


# --- completion --------------------------------------------------------------------------------------


def completed(*words):
    *values, directive = completion.completions(list(words))
    return [value.partition("\t")[0] for value in values], directive


def test_commands_options_and_values_are_completed():
    assert completed("s") == (["status", "simulate", "snapshot", "slices"], ":4")
    assert "--node-policy" in completed("whatif", "--")[0]
    assert completed("status", "--by", "n") == (["node", "namespace"], ":4")
    assert completed("status", "--by=n") == (["--by=node", "--by=namespace"], ":4")
    assert completed("status", "--by", "=", "n") == (["node", "namespace"], ":4")  # as bash cuts it
    assert completed("whatif", "--node-policy", "") == (["binpack", "spread", "fair-share"], ":4")
    assert "dgx-h100" in completed("topology", "--machine", "dgx")[0]
    assert completed("simulate", "-f", "") == ([], ":0")


def test_names_come_from_the_cluster_and_the_chosen_namespace(tmp_path):
    with Served([*cluster("n1"), pod("web")]) as served:
        at = ("--kubeconfig", str(served.kubeconfig(tmp_path)))
        assert completed("status", *at, "--node", "")[0] == ["n1"]
        assert completed("status", *at, "--context", "")[0] == ["c"]
        served.seen.clear()
        completed("explain", *at, "-n", "team", "")
        assert [path for path, _ in served.seen] == ["/api/v1/namespaces/team/pods"]


def test_completion_is_silent_and_does_not_wait(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(completion_values, "PATIENCE", 0.2)
    completion.answer(["status", "--kubeconfig", str(tmp_path / "none"), "--node", ""])
    completion.answer(["status", "--nosuch", ""])
    out, err = capsys.readouterr()
    assert set(out.split()) == {":4"}
    assert err == ""
    assert completion_values._within_patience(lambda: __import__("threading").Event().wait(60) or ["late"]) == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell(hami_dra, shell):
    assert "hami-dra __complete" in hami_dra("completion", shell).stdout


def test_bash_itself_completes_by_the_script(tmp_path):
    """With a stand-in for the program: what it is asked, and what becomes of the answer."""
    program = tmp_path / "hami-dra"
    program.write_text('#!/bin/sh\nprintf "%s\\tall of: $*\\n" alpha beta; echo :4\n')
    program.chmod(0o755)
    script = completion.SCRIPTS[completion.Shell.bash]
    asked = "COMP_WORDS=(hami-dra status a); COMP_CWORD=2; _hami_dra; echo ${COMPREPLY[@]}"
    ended = subprocess.run(
        ["bash", "-c", f"{script}\n{asked}"],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout == "alpha beta\n"


# --- versions, namespaces, errors ------------------------------------------------------------------------


def workload(kind, name, *, image, status, version="", **spec):
    labels = {names.PART_OF_LABEL: names.MANAGED_BY} | ({"app.kubernetes.io/version": version} if version else {})
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": names.SYSTEM_NAMESPACE, "labels": labels},
        "spec": {"template": {"spec": {"containers": [{"image": image}]}}} | spec,
        "status": status,
    }


INSTALLED = [
    workload(
        "Deployment", names.CONTROLLER, image="r/hami-dra:0.9", version="0.9.1", status={"readyReplicas": 1}, replicas=2
    ),
    workload(
        "Deployment", names.WEBHOOK, image="registry:5000/hami-dra@sha256:ab", status={"readyReplicas": 2}, replicas=2
    ),
    workload(
        "DaemonSet",
        "hami-dra-driver-nvidia",
        image="registry:5000/hami-dra:0.8@sha256:ab",
        status={"numberReady": 3, "desiredNumberScheduled": 4},
    ),
    {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": names.CONTROLLER, "namespace": names.SYSTEM_NAMESPACE},
        "spec": {"holderIdentity": "controller-0"},
    },
]


def test_versions_of_program_cluster_and_what_is_installed(hami_dra, tmp_path):
    assert hami_dra("version", "--client").stdout == f"hami-dra: {package_version('hami-dra')}\n"
    elsewhere = workload("DaemonSet", "other", image="x:1", status={}) | {
        "metadata": {"name": "other", "namespace": "gpus"}
    }
    with Served([*INSTALLED, elsewhere]) as served:
        config = served.kubeconfig(tmp_path)
        found = yaml.safe_load(hami_dra("version", "-o", "yaml", "--kubeconfig", config).stdout)
        lines = hami_dra("version", "--kubeconfig", config).stdout.splitlines()
    assert (found["client"], found["kubernetes"], found["leader"]) == (
        package_version("hami-dra"),
        "1.37",
        "controller-0",
    )
    assert (found["controller"]["version"], found["controller"]["ready"], found["controller"]["wanted"]) == (
        "0.9.1",
        1,
        2,
    )
    assert found["webhook"]["version"] == "unknown"  # only a digest says which
    (driver,) = found["drivers"]
    assert (driver["version"], driver["ready"], driver["wanted"]) == ("0.8", 3, 4)
    assert lines == [
        f"hami-dra:   {package_version('hami-dra')}",
        "Kubernetes: 1.37",
        "controller: 0.9.1, 1 of 2 pods ready, leader controller-0",
        "webhook:    unknown, 2 of 2 pods ready",
        "driver:     0.8, 3 of 4 pods ready: hami-dra-driver-nvidia",
    ]


def test_versions_that_may_not_be_read_are_left_out(hami_dra, tmp_path):
    with Served(INSTALLED, forbidden=["deployments", "daemonsets", "leases"]) as served:
        result = hami_dra("version", "--kubeconfig", served.kubeconfig(tmp_path))
    assert (result.code, len(result.stdout.splitlines())) == (0, 2)
    assert [line.partition(":")[0] for line in result.stderr.splitlines()] == ["note"] * 3
    assert 'cannot list resource "deployments"' in result.stderr


def test_a_refused_connection_is_told_in_words(hami_dra, tmp_path):
    with Served([]) as served:
        config = served.kubeconfig(tmp_path)
    result = hami_dra("version", "--kubeconfig", config)
    assert result.code == 2
    assert result.stdout.startswith("hami-dra: ")
    assert f"connection refused: {served.url}: is the API server up" in result.stderr
    assert "Error" not in result.stderr


def test_the_namespace_is_that_of_the_context(tmp_path):
    config = tmp_path / "config"
    context = {"name": "c", "context": {"cluster": "c", "namespace": "d03"}}
    config.write_text(yaml.safe_dump({"kind": "Config", "current-context": "c", "contexts": [context]}))
    connection = Connection(str(config))
    assert pod_namespace(None, None, connection) == "d03"
    assert pod_namespace("x", None, connection) == "x"
    assert pod_namespace(None, [tmp_path], connection) == "default"
    assert listed_namespace(None, None, connection, all_namespaces=False) == "d03"
    assert listed_namespace(None, None, connection, all_namespaces=True) is None
    assert listed_namespace(None, [tmp_path], connection, all_namespaces=False) is None


def test_a_namespace_that_is_not_there_is_named(hami_dra):
    check_namespace("default", [])
    check_namespace("team", documents([pod("p", namespace="team")]))
    with pytest.raises(Exception, match="-n tema: there is no such namespace; did you mean team"):
        check_namespace("tema", documents([pod("p", namespace="team")]))
    assert "leave out one of the two" in hami_dra("status", "--pending", "-n", "a", "-A").stderr


def test_former_names_of_options_work_and_say_so(hami_dra):
    result = hami_dra("doctor", "--namespace=gpus", "--kubeconfig", "/nowhere")
    assert "note: --namespace is now --install-namespace" in result.stderr
    assert "kubeconfig /nowhere" in result.stderr


# --- tables ------------------------------------------------------------------------------------------


def test_the_last_column_is_never_padded_and_wraps_in_its_place_on_a_terminal():
    table = TextTable("POD", ">N", "WHY")
    table.add("a", "1", "no node fits: needs 80000 MiB on one device of gpu-node-with-a-long-name")
    table.add("b", "10", "-")
    assert [line.text for line in table.lines()] == [
        "POD   N  WHY",
        "a     1  no node fits: needs 80000 MiB on one device of gpu-node-with-a-long-name",
        "b    10  -",
    ]
    assert [line.text for line in table.lines(TextLayout(headers=False, width=50))] == [
        "a   1  no node fits: needs 80000 MiB on one device",
        "       of gpu-node-with-a-long-name",
        "b  10  -",
    ]


@pytest.mark.parametrize("words", [["--help"], ["slices", "--list"], ["completion", "bash"], ["version", "--client"]])
def test_a_full_disk_is_one_sentence(words):
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "controller.cli.main", *words],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (ran.returncode, ran.stderr) == (2, "hami-dra: the output cannot be written: No space left on device\n")


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("words", ["slices --list", "__complete sim", "simulate -f {fleet}"])
def test_closed_streams_are_no_error(words, closed, tmp_path):
    fleet = tmp_path / "fleet.yaml"
    fleet.write_text(yaml.safe_dump_all([*cluster("n1"), pod("p")]))
    command = f"{sys.executable} -m controller.cli.main {words.format(fleet=fleet)} {closed}"
    ran = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr.count("Traceback")) == (0, 0)


@pytest.mark.parametrize("words", ["--help", "slices --list", "__complete sim"])
def test_a_reader_that_has_enough_ends_the_command_quietly(words):
    command = f"{sys.executable} -m controller.cli.main {words} | true"
    ran = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert ran.stderr == ""
