"""Every command that a document or --help shows is run, or, where it needs a cluster, at least understood."""

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import chdir
from functools import cache
from itertools import pairwise

import pytest

from controller.cli.main import command_names
from tests.docs.commands_in_docs import (
    DOCUMENTS,
    ROOT,
    help_of,
    needs_cluster,
    params_of,
    parse,
    shown_in,
    shown_in_help,
)
from tests.support.commands import Typed

SHOWN = [
    *(shown for path in DOCUMENTS for shown in shown_in(path)),
    *(shown for name in command_names() for shown in shown_in_help(name)),
]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z0-9-]+):", MAKEFILE, re.MULTILINE))
KUBECTL = {
    "apply",
    "create",
    "delete",
    "get",
    "describe",
    "logs",
    "label",
    "annotate",
    "patch",
    "rollout",
    "port-forward",
}
HELM = {"install", "upgrade", "uninstall", "template"}
READER = {"buildah", "cd", "export", "source", "git", "pip", "uv"}
"""What a reader does around our commands."""
READ = ("examples", "deviceclasses", "resourceslices", "manifests")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of what the commands read, for those that write files beside it."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in READ:
        shutil.copytree(ROOT / name, folder / name)
    (folder / "fleet.yaml").write_text("apiVersion: hami.io/v1alpha1\nkind: Fleet\nnodes: [{machine: g4dn.12xlarge}]\n")
    return folder


def earlier_writers(shown):
    """Lines shown earlier in the same place that make files."""
    return [each for each in SHOWN[: SHOWN.index(shown)] if each.where == shown.where and each.writes]


def printed_by(shown, checkout, capsys):
    """What our command prints, after those whose files it reads: no test needs another one to run before."""
    for earlier in earlier_writers(shown):
        if earlier.writes in shown.line and earlier.parts[0][0] == "hami-dra":
            (checkout / earlier.writes).write_text(printed_by(earlier, checkout, capsys))
    with chdir(checkout):
        result = Typed(capsys)(*shown.parts[0][1:])
    assert result.code == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("shown", SHOWN, ids=str)
def test_the_command_works(shown, checkout, capsys):
    for position, (program, *arguments) in enumerate(shown.parts):
        if program == "hami-dra":
            parse(arguments)
            if position == 0 and not needs_cluster(arguments) and not reads_what_kubectl_wrote(shown):
                printed_by(shown, checkout, capsys)
        elif program == "make":
            check_make(arguments)
        elif program == "kubectl":
            check_kubectl(arguments, {each.writes for each in earlier_writers(shown)})
        elif program == "helm":
            check_helm(arguments)
        elif program.startswith("hack/"):
            assert os.access(ROOT / program, os.X_OK), f"{program}: no such script"
        elif program == ".venv/bin/python":
            check_python(arguments)
        else:
            assert program in READER or program.startswith(".venv/"), f"what is {program}?"


def check_python(arguments):
    script = arguments[1].replace(".", "/") + ".py" if arguments[0] == "-m" else arguments[0]
    assert (ROOT / script).is_file(), script
    known = options_in(script.partition("/")[0])
    assert {word for word in arguments if word.startswith("--")} <= known, arguments


@cache
def options_in(folder):
    """What the scripts of a folder take."""
    return {found for path in (ROOT / folder).rglob("*.py") for found in re.findall(r'"(--[a-z-]+)"', path.read_text())}


def check_make(arguments):
    for word in arguments:
        name, equals, _ = word.partition("=")
        assert (f"{name} ?=" in MAKEFILE) if equals else (name in TARGETS), word


def check_kubectl(arguments, made):
    arguments = arguments[2:] if arguments[0] == "-n" else arguments
    assert arguments[0] in KUBECTL, arguments
    for option, value in pairwise(arguments):
        if option == "-f" and value != "-" and value not in made:
            assert (ROOT / value).exists(), f"kubectl -f {value}: no such file"
    roles = {path.read_text().partition("kind: ClusterRole\n")[2] for path in (ROOT / "manifests").glob("rbac-*.yaml")}
    for option in arguments:
        name, _, role = option.partition("=")
        assert name != "--clusterrole" or any(f"name: {role}\n" in text for text in roles), option


def check_helm(arguments):
    assert arguments[0] in HELM, arguments
    schema = json.loads((ROOT / "charts/hami-dra/values.schema.json").read_text())
    for option, value in pairwise(arguments):
        if option == "--set":
            found = schema
            for key in value.partition("=")[0].split("."):
                found = found["properties"][key]
                reference = found.get("$ref", "").rpartition("/")[2]
                found = schema["definitions"][reference] if reference else found
    if arguments[0] != "uninstall":
        assert any((ROOT / word / "Chart.yaml").exists() for word in arguments), arguments


def reads_what_kubectl_wrote(shown):
    """There is no cluster to read from."""
    return any(
        earlier.line.startswith("kubectl") and earlier.writes and earlier.writes in shown.line
        for earlier in SHOWN
        if earlier.where == shown.where
    ) or any(snapshot in shown.line for snapshot in snapshots(shown.where))


def snapshots(where):
    """Files that `hami-dra snapshot --to` is shown to write there."""
    lines = [earlier.line for earlier in SHOWN if earlier.where == where]
    return [line.split()[-1] for line in lines if line.startswith("hami-dra snapshot") and " --to " in line]


@pytest.mark.parametrize("name", command_names())
def test_every_command_has_examples(name):
    examples = [shown.line for shown in shown_in_help(name)]
    assert [line for line in examples if line.startswith(f"hami-dra {name}")], help_of(name)
    # a terminal of 80 columns does not break them
    assert [line for line in examples if len(line) > 76] == []


@pytest.mark.parametrize("name", command_names())
def test_every_option_is_explained(name):
    missing = [parameter.name for parameter in params_of(name) if not getattr(parameter, "help", "")]
    assert missing == []


def test_the_documents_show_commands():
    assert {path.name for path in DOCUMENTS} >= {"README.md", "install.md", "policies.md", "legacy.md", "claims.md"}
    assert len(SHOWN) > 25


def test_a_wrong_option_would_be_noticed():
    for line in ("simulate -f x --colour", "slices --fleet f --publish --onec", "controller --modes native", "simulat"):
        with pytest.raises(Exception, match=r"[Nn]o such|[Uu]nknown|required"):
            parse(line.split())


def test_the_readme_shows_what_the_demo_prints(capsys):
    shown = (ROOT / "README.md").read_text().partition("$ make demo")[2].partition("```")[0]
    lines = [line for line in shown.splitlines()[1:] if line not in {"", "..."} and not line.startswith(("$ ", "# "))]
    printed = Typed(capsys)("demo").stdout.splitlines()
    assert len(lines) > 4
    assert [line for line in lines if line not in printed] == []


def test_the_readme_shows_what_the_commands_print(capsys):
    """status, explain, whatif and doctor, on tests/fixtures/readme."""
    files = ["deviceclasses", "resourceslices/g4dn.12xlarge.yaml", "resourceslices/g5.12xlarge.yaml"]
    given = [word for file in [*files, "tests/fixtures/readme/state.yaml"] for word in ("-f", ROOT / file)]
    section = (ROOT / "README.md").read_text().partition("## See and understand")[2].partition("```\n\n")[0]
    shown = re.findall(r"^\$ hami-dra (.*?)(?:  +#.*)?\n((?:[^$`].*\n)+)", section, re.MULTILINE)
    assert [line.split()[0] for line, _ in shown] == ["status", "explain", "whatif", "doctor"]
    with chdir(ROOT):
        for line, lines in shown:
            printed = Typed(capsys)(*line.split(), *given).stdout.splitlines()
            assert [each for each in lines.splitlines() if each not in printed] == [], line


def test_the_readme_leads_to_the_list_of_all_commands():
    assert "docs/cli.md" in (ROOT / "README.md").read_text()
    text = (ROOT / "docs/cli.md").read_text()
    assert [name for name in command_names() if f"### hami-dra {name}\n" not in text] == []


def test_every_target_of_the_makefile_is_explained():
    explained = set(re.findall(r"^([a-z0-9-]+):.*## ", MAKEFILE, re.MULTILINE))
    phony = set(re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[1].split())
    assert phony - explained == set()


def test_the_console_script():
    """The tests above call what it calls."""
    assert 'hami-dra = "controller.cli.main:run"' in (ROOT / "pyproject.toml").read_text()
    command = [sys.executable, "-m", "controller.cli.main", "--version"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert printed.startswith("hami-dra ")


# --- commands and options outside of fenced blocks ------------------------------------------------------------------------

OF_OTHER_PROGRAMS = {"--runtime-config", "--no-hooks", "--reuse-values", "--set-sched-class", "--help"}
"""Of the API server, helm, mx-smi, everything."""


def test_commands_stand_where_these_tests_look():
    for path in DOCUMENTS:
        found = re.findall(
            r"^(?: {4}|\t)(?:\$ )?(?:hami-dra|kubectl|helm|make) .*$", outside_of_blocks(path), re.MULTILINE
        )
        assert found == [], f"{path.name}: put it into a console block"


def test_commands_inside_a_sentence_exist():
    options = {name: options_of(name) for name in command_names()}
    for path in DOCUMENTS:
        for line in re.findall(r"`hami-dra ([^`]+)`", outside_of_blocks(path)):
            name, *words = line.split()
            if name != "--version":
                assert name in options, f"{path.name}: hami-dra {line}"
                given = {word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)}
                assert given <= options[name] | {"--help"}, f"{path.name}: hami-dra {line}"


def test_options_inside_a_sentence_exist():
    known = set().union(*(options_of(name) for name in command_names())) | OF_OTHER_PROGRAMS
    known |= options_in("hack")
    for path in DOCUMENTS:
        named = set(re.findall(r"`(--[a-z][a-z-]*)[^`]*`", outside_of_blocks(path)))
        assert named - known == set(), path.name


def outside_of_blocks(path):
    return re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)


@cache
def options_of(name):
    return {option for parameter in params_of(name) for option in (*parameter.opts, *parameter.secondary_opts)}
