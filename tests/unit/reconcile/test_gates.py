"""How long a refused pod keeps its gate: for ever, where neither a new node nor preemption could help.

kube-scheduler's words follow a lifted gate, and would be the last that a user reads.
"""

import pytest

from controller.decide import decide
from hami_dra.api import kinds, names
from tests.support.harness import SPACE, claim, device_class, play, pod
from tests.unit.reconcile.gang_stories import member

QUICK = {"quiet_time": 0.0, "probe": False, "decide": decide}
LONG = 60.0


def asking(**exactly):
    """A claim whose request has these fields besides."""
    body = claim("c")
    body["spec"]["devices"]["requests"][0]["exactly"].update(exactly)
    return body


def selecting(expression):
    return asking(selectors=[{"cel": {"expression": expression}}])


INVALID = {
    "node policy": (claim("c"), {names.NODE_POLICY: "binpak"}, "InvalidPolicy"),
    "device policy": (claim("c"), {names.DEVICE_POLICY: "nearest"}, "InvalidPolicy"),
    "weights": (claim("c"), {names.PACKING_WEIGHTS: "theta=2"}, "InvalidPolicy"),
    "mode": (claim("c"), {"nvidia.com/vgpu-mode": "migg"}, "InvalidPolicy"),
    "class": (claim("c", device_class="gone"), {}, "FilteringFailed"),
    "selector that matches nothing": (selecting('device.driver == "none.example.com"'), {}, "FilteringFailed"),
    "selector that fails": (selecting('device.attributes["hami.io"].nope == "a"'), {}, "FilteringFailed"),
    "capacity that nobody publishes": (asking(capacity={"requests": {"mem": "1Gi"}}), {}, "FilteringFailed"),
    "no claim": (None, {}, "InvalidClaim"),
}


async def gated(harness, name="p"):
    return bool((await harness.pod(name)).spec.scheduling_gates)


@pytest.mark.parametrize("mistake", INVALID)
def test_a_pod_that_asks_for_what_cannot_be_keeps_its_gate_and_the_sentence_is_the_last(mistake):
    body, annotations, reason = INVALID[mistake]

    async def story(harness):
        if body is not None:
            await harness.add(kinds.RESOURCE_CLAIM, body)
        await harness.add(kinds.POD, pod("p", claims=["c"], gated=True, annotations=annotations))
        await harness.sleep(LONG)
        assert await gated(harness)
        assert {event["reason"] for event in await harness.events()} == {reason}

    play(story, **QUICK)


@pytest.mark.parametrize(
    ("body", "annotations"),
    [(claim("c", 99), {}), (claim("c", count=9), {})],
    ids=["more memory than any device has", "more devices than a node has"],
)
def test_a_larger_node_could_help_so_the_gate_goes_after_its_patience(body, annotations):
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, body)
        await harness.add(kinds.POD, pod("p", claims=["c"], gated=True, annotations=annotations))
        await harness.sleep(9)
        assert await gated(harness)
        await harness.sleep(2)
        assert not await gated(harness)

    play(story, **QUICK)


CORRECTIONS = {
    "the class is created": (
        claim("c", device_class="late"),
        lambda harness: harness.add(kinds.DEVICE_CLASS, device_class("late")),
    ),
    "the claim is created": (None, lambda harness: harness.add(kinds.RESOURCE_CLAIM, claim("c"))),
}


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_a_gated_pod_goes_on_when_what_it_asks_for_becomes_valid(correction):
    body, correct = CORRECTIONS[correction]

    async def story(harness):
        if body is not None:
            await harness.add(kinds.RESOURCE_CLAIM, body)
        await harness.add(kinds.POD, pod("p", claims=["c"], gated=True))
        await harness.sleep(LONG)
        assert await gated(harness)
        await correct(harness)
        await harness.bound("p", seconds=5)

    play(story, **QUICK)


@pytest.mark.parametrize(
    ("refs", "kind", "field"),
    [
        ({"claims": ["late"]}, "ResourceClaim", "resourceClaimName"),
        ({"templates": ["late"]}, "ResourceClaimTemplate", "resourceClaimTemplateName"),
    ],
)
@pytest.mark.parametrize("gate", [True, False], ids=["gated", "ungated"])
def test_what_a_pod_names_and_nobody_created_is_told_after_some_seconds(refs, kind, field, gate):
    async def story(harness):
        await harness.add(kinds.POD, pod("p", gated=gate, **refs))
        await harness.sleep(2)
        assert await harness.events("InvalidClaim") == []
        await harness.sleep(2)
        [event] = await harness.events("InvalidClaim")
        assert f": {kind} {SPACE}/late does not exist; create it" in event["note"]
        assert event["note"].endswith(f"another {field}")

    play(story, **QUICK)


def test_a_selector_that_fails_is_one_event_while_other_pods_come_and_go():
    """Each evaluation named another device, so that the event was there several times."""

    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, selecting('device.attributes["hami.io"].nope == "a"'))
        await harness.add(kinds.POD, pod("p", claims=["c"], gated=True))
        for number in range(6):
            await harness.add(kinds.RESOURCE_CLAIM, claim(f"o{number}"))
            await harness.add(kinds.POD, pod(f"q{number}", claims=[f"o{number}"], gated=True))
            await harness.sleep(LONG)
            if number % 2:
                await harness.delete_pod(f"q{number}")
        assert len([event for event in await harness.events() if event["regarding"]["name"] == "p"]) == 1

    play(story, nodes=3, **QUICK)


def test_a_gang_with_a_member_that_asks_for_what_cannot_be_keeps_its_gates():
    async def story(harness):
        await harness.add(kinds.RESOURCE_CLAIM, claim("a"), claim("b", device_class="late"))
        for name, held in (("m0", "a"), ("m1", "b")):
            await harness.add(kinds.POD, member(name, least=2, templates=(), claims=[held]))
        await harness.sleep(LONG)
        assert [await gated(harness, name) for name in ("m0", "m1")] == [True, True]
        await harness.add(kinds.DEVICE_CLASS, device_class("late"))
        await harness.bound("m0", "m1", seconds=10)

    play(story, **QUICK)
