"""hami-dra explain as a user types it: files, a controller that answers, and every way to get it wrong."""

import json
from contextlib import asynccontextmanager

import pytest
import yaml
from aiohttp import web

from controller.cli.errors import CommandError
from controller.cli.explain import _kept, _target
from controller.views.explanation import Explanation, from_json, to_json
from tests.support.commands import Typed
from tests.support.manifests import claim, cluster, part, pod, template


@pytest.fixture
def hami_dra(capsys, monkeypatch):
    monkeypatch.delenv("HAMI_DRA_CONTROLLER", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    return Typed(capsys)


@pytest.fixture
def file(tmp_path):
    def file(*raws):
        path = tmp_path / "in.yaml"
        flat = [raw for each in raws for raw in (each if isinstance(each, list) else [each])]
        path.write_text(yaml.safe_dump_all(flat))
        return path

    return file


def allocated(name, device, *pods, node="n1"):
    """A claim for 7,500 MiB that has a card, reserved for these pods."""
    result = {
        "request": "gpu",
        "driver": "nvidia.hami.io",
        "pool": node,
        "device": device,
        "shareID": f"{len(name):08}-0000-0000-0000-000000000000",
        "consumedCapacity": {"memory": "7500Mi", "cores": "0", "shares": "1"},
    }
    reserved = [{"resource": "pods", "name": each, "uid": each} for each in pods]
    return {**claim(name), "status": {"allocation": {"devices": {"results": [result]}}, "reservedFor": reserved}}


def test_a_waiting_pod_as_a_table(hami_dra, file):
    path = file(
        cluster(), template("t"), pod("p", "template:t", annotations={"hami.io/node-scheduler-policy": "spread"})
    )
    result = hami_dra("explain", "p", "-f", path)
    assert result.code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("Pod default/p goes to n1 (computed now, as if")
    policy = next(line for line in lines if line.startswith("which node"))
    assert policy.split() == ["which", "node", "spread", "annotation", "of", "Pod", "default/p"]
    assert "Runner-up: n2, lost in name: it is equal, and the name that sorts first wins" in lines
    assert not any(line.startswith("Devices of") for line in lines)
    wide = hami_dra("explain", "p", "-f", path, "-o", "wide").stdout.splitlines()
    assert "Devices of n1, chosen" in wide
    assert hami_dra("explain", "p", "-f", path, "-o", "name").stdout == "node/n1\n"
    assert yaml.safe_load(hami_dra("explain", "p", "-f", path, "-o", "yaml").stdout)["node"] == "n1"
    assert "Devices of n2, runner-up" in wide
    [chosen] = [line for line in wide if line.startswith("gpu-") and " chosen " in line]
    assert "1.00 (1 of 10)" in chosen


def test_a_pod_without_devices_is_not_ours_to_place(hami_dra, file):
    path = file(cluster("n1"), pod("plain"), pod("picky", nodeSelector={"disk": "fast"}))
    plain = hami_dra("explain", "plain", "-f", path)
    assert (plain.code, plain.stdout) == (
        0,
        (
            "Pod default/plain requests no devices that hami-dra manages\n"
            "default-scheduler schedules it; see kubectl describe pod plain -n default\n"
        ),
    )
    assert json.loads(hami_dra("explain", "plain", "-f", path, "-o", "json").stdout)["outcome"] == "unmanaged"
    picky = hami_dra("explain", "picky", "-f", path).stdout
    assert "nodeSelector wants disk=fast; no node has the label disk" in " ".join(picky.split())
    assert "SCORE" not in picky


def test_a_refused_pod_says_for_each_card_what_was_compared(hami_dra, file):
    path = file(cluster("n1"), claim("c", part(memory="90Gi")), pod("p", "c"))
    result = hami_dra("explain", "-f", path, "default/p", "--devices")
    assert result.code == 0
    assert result.stdout.startswith("Pod default/p finds no node")
    assert result.stdout.splitlines()[1].endswith(" [4 CardInsufficientMemory]")
    assert "asks 92160 MiB of memory, 15360 of 15360 MiB are free" in result.stdout
    assert "are free" not in hami_dra("explain", "-f", path, "p").stdout


OF_FILES = [
    ["explain", "p", "--devices"],
    ["explain", "p", "-o", "json"],
    ["simulate"],
    ["simulate", "--explain", "p"],
    ["simulate", "-o", "json"],
    ["status", "--pending"],
    ["status", "--pending", "-o", "json"],
    ["whatif", "--node-policy", "spread"],
    ["whatif", "--node-policy", "spread", "-o", "json"],
]


@pytest.mark.parametrize("words", OF_FILES, ids=" ".join)
@pytest.mark.parametrize(
    ("annotation", "value"), [("use-gputype", "A100"), ("nouse-gputype", "T4,A10G"), ("use-gpuuuid", "GPU-0")]
)
def test_an_annotation_is_named_and_not_the_selector_made_of_it(hami_dra, file, words, annotation, value):
    asked = pod("p", annotations={f"nvidia.com/{annotation}": value}, limits={"nvidia.com/gpu": 1})
    path = file(*cluster(), asked)
    if words[0] == "status":  # reads what is in a cluster: pods that the webhook converted
        path.write_text(hami_dra("convert", "-f", path).stdout)
    found = hami_dra(*words, "-f", path)
    output = found.stdout + found.stderr
    assert "device.attributes" not in output
    assert "lowerAscii" not in output
    if words[0] != "whatif" and words != ["simulate", "-o", "json"]:
        assert f"nvidia.com/{annotation}={value}" in output


def test_json_is_the_explanation_and_nothing_else(hami_dra, file):
    result = hami_dra("explain", "p", "-f", file(cluster(), template("t"), pod("p", "template:t")), "-o", "json")
    found = from_json(result.stdout)
    assert (found.pod, found.outcome, found.at) == ("default/p", "placed", "")
    assert "runnerUp" in json.loads(result.stdout)


def test_a_finished_pod_is_said_to_have_finished(hami_dra, file):
    done = pod("done", nodeName="n1") | {"status": {"phase": "Succeeded"}}
    result = hami_dra("explain", "done", "-f", file(cluster("n1"), done))
    assert "it has finished (Succeeded) on n1 and is never placed again" in result.stdout + result.stderr


def test_a_running_pod_is_explained_as_if_it_had_nothing_yet_and_others_count(hami_dra, file):
    running = [pod(name, name, nodeName="n1") | {"status": {"phase": "Running"}} for name in ("mine", "theirs")]
    state = [cluster("n1"), allocated("mine", "gpu-0", "mine"), allocated("theirs", "gpu-0", "theirs"), *running]
    result = hami_dra("explain", "mine", "-f", file(*state), "-o", "json")
    assert "it is on n1 already; what follows is where it would go now" in result.stderr
    found = from_json(result.stdout)
    assert found.outcome == "placed"
    assert found.nodes[0].terms[0].text == "1 of 40"
    # spread: not the card of the other one, on which it was
    assert [each.device for each in found.chosen] == ["nvidia.hami.io/n1/gpu-1"]


def test_a_claim_that_others_use_too_keeps_its_place(hami_dra, file):
    state = [cluster(), allocated("c", "gpu-0", "p", "q"), pod("p", "c")]
    result = hami_dra("explain", "p", "-f", file(*state), "-o", "json")
    assert "ResourceClaim default/c is used by q too: it stays allocated" in result.stderr
    assert from_json(result.stdout).chosen == ()


def test_a_claim_stands_for_the_pod_that_uses_it(hami_dra, file):
    path = file(cluster(), claim("c"), pod("p", "c"))
    for words in (["claim/c"], ["resourceclaims/default/c"], ["claim/c", "-n", "default"]):
        assert from_json(hami_dra("explain", *words, "-f", path, "-o", "json").stdout).pod == "default/p"


def test_what_keeps_a_pod_from_being_decided_on(hami_dra, file):
    found = from_json(hami_dra("explain", "p", "-f", file(cluster(), pod("p", "missing")), "-o", "json").stdout)
    assert (found.outcome, found.nodes) == ("error", ())
    assert "ResourceClaim default/missing does not exist" in found.message


def test_options_stand_for_the_controllers_defaults(hami_dra, file):
    path = file(cluster(), template("t"), pod("p", "template:t"))
    words = ("explain", "p", "-f", path, "-o", "json", "--node-policy", "spread", "--device-policy", "binpack")
    used = {each.axis: (each.value, each.origin) for each in from_json(hami_dra(*words).stdout).policies}
    assert used["node"] == ("spread", "controller default")
    assert used["device"] == ("binpack", "controller default")


def test_weights_of_packing_are_said_where_they_have_a_say(hami_dra, file):
    path = file(cluster(), template("t"), pod("p", "template:t"))
    words = ("explain", "p", "-f", path, "-o", "json", "--packing-weights")

    def axes(*more):
        reported = from_json(hami_dra(*words, *more).stdout)
        return {each.axis: (each.value, each.origin) for each in reported.policies}

    assert "packing" not in axes("theta=0.5")
    assert axes("theta=0.5", "--node-policy", "fair-share")["packing"] == (
        "theta=0.5,left=0.5,rare=0,large=0",
        "controller default",
    )
    assert axes("large=2")["packing"][0] == "theta=0.65,left=0.5,rare=0,large=2"


def test_cards_of_the_nodes_asked_for(hami_dra, file):
    path = file(cluster(), template("t"), pod("p", "template:t"))
    text = hami_dra("explain", "p", "-f", path, "--node", "n2").stdout
    assert "Devices of n2" in text
    assert "Devices of n1" not in text


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["nobody"], "no Pod default/nobody; there are p"),
        (["x", "-n", "empty"], "no Pod empty/x; namespace empty has no pod"),
        (["claim/none"], "no pod that uses ResourceClaim default/none"),
        (["deployment/web"], "deployment/web: name one of its pods (kubectl get pods)"),
        (["sts/web"], "sts/web: name one of its pods"),
        (["a/b/c"], "write NAME, NAMESPACE/NAME"),
        (["/p"], "write NAME, NAMESPACE/NAME"),
        (["p", "--node", "n9"], "--node: n9: not among the nodes"),
        (["p", "--node-policy", "best"], "--node-policy: 'best' is not one of"),
        (["p", "--packing-weights", "large=-1"], "--packing-weights: large='-1' must be a number from 0"),
        (["p", "--controller", "http://localhost:1"], "leave out -f or --controller"),
    ],
)
def test_bad_input_is_named_with_its_fix(hami_dra, file, words, problem):
    result = hami_dra("explain", *words, "-f", file(cluster(), template("t"), pod("p", "template:t")))
    assert result.code == 2
    assert result.stdout == ""
    assert problem in result.stderr


def test_how_targets_are_written():
    assert _target("p", lambda: "default") == ("pod", "default/p")
    assert _target("ns/p", None) == ("pod", "ns/p")
    assert _target("pod/p", lambda: "ns") == ("pod", "ns/p")
    assert _target("claim/ns/c", None) == ("claim", "ns/c")


# --- a controller that answers -------------------------------------------------------------------------------------------


@asynccontextmanager
async def answering(handler):
    app = web.Application()
    app.router.add_get("/api/v1/explanations/{what}/{namespace}/{name}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = site._server.sockets[0].getsockname()
        yield f"http://{host}:{port}/"
    finally:
        await runner.cleanup()


KEPT = Explanation("ns/p", "u", "2026-01-01T00:00:00.000Z", "placed", node="n1")


async def test_the_controllers_own_decision_with_a_token(tmp_path):
    token = tmp_path / "token"
    token.write_text("secret\n")
    asked = []

    async def handler(request):
        asked.append((request.path, request.headers.get("Authorization")))
        return web.Response(body=to_json(KEPT), content_type="application/json")

    async with answering(handler) as url:
        assert await _kept(url, token, "claim", "ns/c") == KEPT
        assert await _kept(url, None, "pod", "ns/p") == KEPT
    assert asked == [
        ("/api/v1/explanations/claims/ns/c", "Bearer secret"),
        ("/api/v1/explanations/pods/ns/p", None),
    ]


@pytest.mark.parametrize(
    ("status", "body", "problem"),
    [
        (404, b"", "keeps no decision on pod ns/p"),
        (401, b"", "--token-file"),
        (403, b"", "--token-file"),
        (500, b"", "answer 500"),
        (200, b"<html>", "the answer is not an explanation"),
        (200, b'{"pod": 1}', "the answer is not an explanation"),
    ],
)
async def test_answers_that_are_no_explanation(status, body, problem):
    async def handler(_request):
        return web.Response(status=status, body=body)

    async with answering(handler) as url:
        with pytest.raises(CommandError, match=problem):
            await _kept(url, None, "pod", "ns/p")


async def test_nobody_answers(tmp_path):
    with pytest.raises(CommandError, match="port-forward deployment/hami-dra-controller"):
        await _kept("http://127.0.0.1:1", None, "pod", "ns/p")
    with pytest.raises(CommandError, match="--token-file"):
        await _kept("http://127.0.0.1:1", tmp_path / "missing", "pod", "ns/p")
    with pytest.raises(CommandError, match="--ca-file"):
        await _kept("https://127.0.0.1:1", None, "pod", "ns/p", ca_file=tmp_path / "missing")
    (tmp_path / "two").write_text("a b")
    with pytest.raises(CommandError, match="must contain one token"):
        await _kept("http://127.0.0.1:1", tmp_path / "two", "pod", "ns/p")
