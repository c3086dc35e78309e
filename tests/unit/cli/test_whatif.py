"""hami-dra whatif as a user types it. What it says is for test_whatif and the golden documents."""

import json

import pytest
import yaml

from tests.docs.commands_in_docs import ROOT, blocks
from tests.support.commands import Typed
from tests.support.manifests import claim, cluster, part, pod
from tests.unit.insight.test_whatif import SCATTERED, held


@pytest.fixture
def hami_dra(capsys):
    return Typed(capsys)


@pytest.fixture
def file(tmp_path):
    def file(*raws, name="in.yaml"):
        path = tmp_path / name
        path.write_text(yaml.safe_dump_all(raws))
        return path

    return file


def test_a_table_that_begins_with_the_conclusion(hami_dra, file):
    result = hami_dra("whatif", "-f", file(*SCATTERED), "--device-policy", "binpack", "--replace")
    assert (result.code, result.stderr) == (0, "")
    first = result.stdout.splitlines()[0]
    assert first.startswith("Device policy binpack and placing all pods again would free 1 of 8 devices")
    assert "2 → 3" in result.stdout


def test_json_on_stdout_and_nothing_else(hami_dra, file):
    result = hami_dra("whatif", "-f", file(*SCATTERED, {"kind": "ConfigMap"}), "--without-node", "n1", "-o", "json")
    document = json.loads(result.stdout)
    assert {"before", "after", "moved", "freedCards", "emptiedNodes", "unplaced", "conclusion"} <= set(document)
    assert document["moved"][0]["fromNode"] == "n1"
    assert result.stderr.startswith("note: ")
    assert document["notes"][0] in result.stderr


def test_the_exit_status_tells_that_a_pod_would_not_fit(hami_dra, file):
    state, more = file(*cluster("n1")), file(claim("x", part("90Gi")), pod("x", "x"), name="more.yaml")
    assert hami_dra("whatif", "-f", state, "--with", more).code == 0
    assert hami_dra("whatif", "-f", state, "--with", more, "--fail-unplaced").code == 1


def test_who_waits_already_is_no_failure(hami_dra, file):
    state = file(*cluster("n1", "n2"), claim("x", part("90Gi")), pod("x", "x"))
    assert hami_dra("whatif", "-f", state, "--without-node", "n2", "--fail-unplaced").code == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "the change is empty: give one or more of --node-policy"),
        (["--override-annotations", "--replace"], "--override-annotations: give the overriding"),
        (["--node-policy", "pack"], "--node-policy: 'pack' is not one of"),
        (["--device-policy", "pack"], "--device-policy: 'pack' is not one of"),
        (["--packing-weights", "theta=2"], "--packing-weights: 'theta=2': theta must be above 0"),
        (["--present-node-policy", "pack", "--replace"], "--present-node-policy: 'pack' is not one of"),
        (["--present-packing-weights", "x=1", "--replace"], "--present-packing-weights: 'x=1' is not like theta=0.65"),
        (["--without-node", "n9"], "without node n9: there is no such node; there are n1, n2"),
        (["--with", "none.yaml"], "none.yaml: no such file or folder"),
        (["--replace", "--feature-gates", "X=true"], "--feature-gates: "),
    ],
)
def test_what_cannot_be_done(hami_dra, file, options, message):
    result = hami_dra("whatif", "-f", file(*SCATTERED), *options)
    assert (result.code, result.stdout) == (2, "")
    assert message in result.stderr


LARGE_NODE_IN_USE = [*cluster("n1", "n2"), *held("a", "n2", "gpu-0"), claim("x", part()), pod("x", "x")]


def test_other_weights_of_packing(hami_dra, file):
    """n2 is in use, so binpack takes it; its cards are larger than needed."""
    words = ("whatif", "-f", file(*LARGE_NODE_IN_USE), "--packing-weights", "large=5")
    first = hami_dra(*words).stdout.splitlines()[0]
    assert first.startswith("Packing weights large=5 would free 1 and take 1 of 8 devices and start using node n1")
    assert "would change nothing" in hami_dra(*words, "--present-packing-weights", "large=5").stdout


def test_weights_that_annotations_ask_for_are_overridden_where_that_is_said(hami_dra, file):
    annotated = pod("x", "x", annotations={"hami.io/packing-weights": "large=0"})
    words = ("whatif", "-f", file(*LARGE_NODE_IN_USE[:-1], annotated), "--packing-weights", "large=5")
    kept = hami_dra(*words)
    assert "would change nothing" in kept.stdout
    assert "1 object with another policy by annotation" in kept.stderr
    assert "moving 1 pod" in hami_dra(*words, "--override-annotations").stdout


def test_names_are_no_markup(hami_dra, file):
    odd = pod("[red]x", "none", namespace="[bold]")
    result = hami_dra("whatif", "-f", file(*cluster("n1")), "--with", file(odd, name="odd.yaml"))
    assert "[bold]/[red]x" in result.stdout


def test_the_page_shows_what_is_printed():
    (shown,) = [text for language, text in blocks(ROOT / "docs/whatif.md") if language == "text"]
    printed = (ROOT / "tests/golden/whatif/pack/output").read_text().splitlines()
    assert [line for line in shown.splitlines() if line not in [*printed, "..."]] == []
