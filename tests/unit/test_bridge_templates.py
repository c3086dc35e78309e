"""Templates that nothing refers to any more are collected, and no others."""

import msgspec
import pytest

from controller.bridge.convert import convert_pod
from controller.bridge.templates import TemplateCollector, collect
from hami_dra.api import kinds
from hami_dra.api.core import Pod
from hami_dra.cluster.memory import MemoryCluster
from hami_dra.cluster.protocol import Forbidden, Unavailable

KIND = kinds.RESOURCE_CLAIM_TEMPLATE
HOUR = 3600.0


def legacy(count, namespace="team"):
    limits = {"nvidia.com/gpu": count}
    raw = {
        "metadata": {"name": f"web-{count}"},
        "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
    }
    return convert_pod(raw, namespace)


def user_of(conversion, namespace="team"):
    return msgspec.convert({**conversion.pod, "metadata": {"name": "web", "namespace": namespace}}, Pod, strict=False)


class World:
    def __init__(self):
        self.cluster = MemoryCluster()
        self.pods = []
        self.now = 0.0
        self.leading = True
        self.collector = TemplateCollector(
            self.cluster,
            lambda: self.pods,
            may_write=lambda: self.leading,
            after=HOUR,
            clock=lambda: self.now,
        )

    async def add(self, conversion, namespace="team"):
        await self.cluster.create(KIND, conversion.templates[0], namespace=namespace)

    async def names(self):
        return {item.metadata.name for item in (await self.cluster.list(KIND)).items}

    async def at(self, now):
        self.now = now
        await self.collector.once()
        return len(await self.names())


@pytest.fixture
def world():
    return World()


async def test_unused_for_an_hour_and_gone(world):
    await world.add(legacy(1))
    assert await world.at(0) == 1
    assert await world.at(HOUR - 1) == 1
    assert await world.at(HOUR) == 0


async def test_used_in_between_the_hour_begins_anew(world):
    conversion = legacy(1)
    await world.add(conversion)
    assert await world.at(0) == 1
    world.pods = [user_of(conversion)]
    assert await world.at(HOUR) == 1
    world.pods = []
    assert await world.at(HOUR + 10) == 1
    assert await world.at(2 * HOUR) == 1
    assert await world.at(2 * HOUR + 10) == 0


async def test_a_pod_of_another_namespace_is_no_user(world):
    conversion = legacy(1)
    await world.add(conversion)
    world.pods = [user_of(conversion, "elsewhere")]
    await world.at(0)
    assert await world.at(HOUR) == 0


async def test_templates_of_users_stay(world):
    theirs = legacy(1).templates[0]
    theirs["metadata"]["labels"].pop("app.kubernetes.io/managed-by")
    await world.cluster.create(KIND, theirs, namespace="team")
    renamed = legacy(2).templates[0]
    renamed["metadata"]["name"] = "my-own-name"
    await world.cluster.create(KIND, renamed, namespace="team")
    await world.at(0)
    assert await world.at(10 * HOUR) == 2


async def test_a_template_that_changed_meanwhile_stays_for_this_round(world):
    await world.add(legacy(1))
    await world.at(0)

    async def touch(request):
        if request.verb == "delete":
            world.cluster.hooks.clear()
            await world.cluster.patch(KIND, request.name, {"metadata": {"annotations": {"a": "b"}}}, namespace="team")

    world.cluster.hooks.append(touch)
    assert await world.at(HOUR) == 1
    assert await world.at(HOUR + 1) == 0


async def test_only_the_leader_deletes(world):
    await world.add(legacy(1))
    await world.at(0)
    world.leading = False
    assert await world.at(HOUR) == 1


async def test_one_failure_does_not_keep_the_others(world):
    await world.add(legacy(1))
    await world.add(legacy(2))
    await world.at(0)
    world.cluster.fail_next(Forbidden("no"), verb="delete")
    assert await world.at(HOUR) == 1


async def test_a_round_that_cannot_list_is_tried_again(world):
    world.cluster.fail_next(Unavailable("away"), verb="list")
    with pytest.raises(Unavailable):
        await world.collector.once()
    await world.collector.once()


def test_what_is_on_its_way_out_is_not_deleted_again():
    raw = legacy(1).templates[0]
    raw["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "uid": "u"}
    template = msgspec.convert(raw, KIND.type, strict=False)
    assert collect([template], [], {"u": 0.0}, now=HOUR, after=HOUR).delete == ()
