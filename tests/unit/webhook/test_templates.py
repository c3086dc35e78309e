"""Which stored template is the right one; templates that nothing refers to any more are collected, and no others."""

import msgspec
import pytest

from controller.webhook.convert import convert_pod
from controller.webhook.templates import AFTER, TemplateCollector, collect, is_same_request
from hami_dra.api import kinds
from hami_dra.kube.protocol import Forbidden
from tests.support.steered_cluster import SteeredCluster

KIND = kinds.RESOURCE_CLAIM_TEMPLATE


def legacy(count, namespace="team", **more):
    limits = {"nvidia.com/gpu": count, **{f"nvidia.com/{key}": value for key, value in more.items()}}
    raw = {
        "metadata": {"name": f"web-{count}"},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
    }
    return convert_pod(raw, namespace)


def stored(body):
    """As an API server gives it back."""
    return msgspec.json.decode(msgspec.json.encode(body), type=KIND.type, strict=False)


def key_of(conversion, namespace="team"):
    return f"{namespace}/{conversion.templates[0]['metadata']['name']}"


def test_a_stored_template_is_compared_by_what_it_asks_for():
    ours = legacy(1, **{"gpumem-percentage": 30}).templates[0]
    devices = ours["spec"]["spec"]["devices"]
    theirs = {
        "metadata": {"name": "x", "labels": {"team": "a"}, "resourceVersion": "7"},
        "spec": {"metadata": {"creationTimestamp": None}, "spec": {"devices": devices}},
    }
    assert is_same_request(ours, stored(theirs))
    assert not is_same_request(ours, stored(legacy(2).templates[0]))
    assert not is_same_request(ours, stored({"metadata": {"name": "x"}}))
    config = devices["config"][0]
    config["opaque"]["parameters"]["memoryPercent"] = 31
    assert not is_same_request(legacy(1, **{"gpumem-percentage": 30}).templates[0], stored(theirs))


def test_parameters_that_cannot_be_read_are_not_ours():
    ours = legacy(1, **{"gpumem-percentage": 30}).templates[0]
    text = msgspec.json.encode(ours).replace(b'"memoryPercent":30', b'"memoryPercent":"\xff"')
    assert not is_same_request(ours, msgspec.json.decode(text, type=KIND.type, strict=False))


class TemplateHarness:
    def __init__(self):
        self.cluster = SteeredCluster()
        self.used = set()
        self.now = 0.0
        self.leading = True
        self.templates = ()
        self.collector = TemplateCollector(
            self.cluster,
            lambda: self.templates,
            lambda key: key in self.used,
            may_write=lambda: self.leading,
            clock=lambda: self.now,
        )

    async def add(self, conversion, namespace="team"):
        await self.cluster.create(KIND, conversion.templates[0], namespace=namespace)

    async def names(self):
        return {item.metadata.name for item in (await self.cluster.list(KIND)).items}

    async def at(self, now):
        self.now = now
        self.templates = (await self.cluster.list(KIND)).items
        await self.collector.once()
        return len(await self.names())


@pytest.fixture
def harness():
    return TemplateHarness()


async def test_unused_for_a_minute_and_gone(harness):
    await harness.add(legacy(1))
    assert await harness.at(0) == 1
    assert await harness.at(AFTER - 1) == 1
    assert await harness.at(AFTER) == 0


async def test_used_in_between_the_time_begins_again(harness):
    conversion = legacy(1)
    await harness.add(conversion)
    assert await harness.at(0) == 1
    harness.used = {key_of(conversion)}
    assert await harness.at(AFTER) == 1
    harness.used = set()
    assert await harness.at(AFTER + 10) == 1
    assert await harness.at(2 * AFTER) == 1
    assert await harness.at(2 * AFTER + 10) == 0


async def test_a_pod_of_another_namespace_is_no_user(harness):
    conversion = legacy(1)
    await harness.add(conversion)
    harness.used = {key_of(conversion, "elsewhere")}
    await harness.at(0)
    assert await harness.at(AFTER) == 0


async def test_templates_of_users_stay(harness):
    theirs = legacy(1).templates[0]
    theirs["metadata"]["labels"].pop("app.kubernetes.io/managed-by")
    await harness.cluster.create(KIND, theirs, namespace="team")
    renamed = legacy(2).templates[0]
    renamed["metadata"]["name"] = "my-own-name"
    await harness.cluster.create(KIND, renamed, namespace="team")
    await harness.at(0)
    assert await harness.at(10 * AFTER) == 2


async def test_a_template_that_changed_meanwhile_stays_for_this_round(harness):
    await harness.add(legacy(1))
    await harness.at(0)

    async def touch(request):
        if request.verb == "delete":
            harness.cluster.hooks.clear()
            await harness.cluster.patch(KIND, request.name, {"metadata": {"annotations": {"a": "b"}}}, namespace="team")

    harness.cluster.hooks.append(touch)
    assert await harness.at(AFTER) == 1
    assert await harness.at(AFTER + 1) == 0


async def test_only_the_leader_deletes(harness):
    await harness.add(legacy(1))
    await harness.at(0)
    harness.leading = False
    assert await harness.at(AFTER) == 1


async def test_one_failure_does_not_keep_the_others(harness):
    await harness.add(legacy(1))
    await harness.add(legacy(2))
    await harness.at(0)
    harness.cluster.fail_next(Forbidden("no"), verb="delete")
    assert await harness.at(AFTER) == 1


def test_what_is_on_its_way_out_is_not_deleted_again():
    raw = legacy(1).templates[0]
    raw["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "uid": "u"}
    template = msgspec.convert(raw, KIND.type, strict=False)
    assert collect([template], lambda _: False, {"u": 0.0}, now=AFTER, after=AFTER).delete == ()
