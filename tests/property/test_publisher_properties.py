"""Whatever the pool was, whatever somebody did to its slices, and wherever we were interrupted:

- the plan leads to exactly the wanted pool, and then there is nothing left to do;
- at no moment in between does a reader that keeps to the rules (newest generation, complete) see a mixture;
- the generation never falls, and a change of what is offered is never hidden behind the same generation with two writes.
"""

import copy
import json
from dataclasses import dataclass, field

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_dra.api.resource import ResourceSlice
from hami_dra.driver.limits import check_pools
from hami_dra.driver.plan import Plan, plan
from hami_dra.driver.slices import Pool, SliceContent, slice_body


def device(name, version):
    return {"name": name, "attributes": {"version": {"int": version}}}


# Few devices per slice, so that pools of several slices stay small.
contents = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=4)
"""Per slice: how many devices, and a version of them."""


@st.composite
def pools(draw):
    sizes = draw(contents)
    slices, number = [], 0
    for size, version in sizes:
        slices.append(SliceContent(tuple(device(f"d{number + offset}", version) for offset in range(size))))
        number += size
    return Pool("d.example.com", "n1", tuple(slices), node_uid=draw(st.sampled_from(["", "u1", "u2"])))


@dataclass
class Server:
    """Slices by name, as JSON, with versions."""

    objects: dict = field(default_factory=dict)
    version: int = 0
    history: list = field(default_factory=list)

    def listed(self):
        return [msgspec.convert(body, ResourceSlice) for body in self.objects.values()]

    def _touch(self, body):
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        body["metadata"].setdefault("uid", f"uid-{self.version}")
        self.objects[body["metadata"]["name"]] = body

    def create(self, body):
        assert body["metadata"]["name"] not in self.objects
        self._touch(copy.deepcopy(body))
        self.history.append(self.seen())

    def update(self, name, patch):
        body = self.objects[name]
        assert patch["metadata"]["uid"] == body["metadata"]["uid"]
        assert patch["metadata"]["resourceVersion"] == body["metadata"]["resourceVersion"]
        for key, value in patch["spec"].items():
            if value is None:
                body["spec"].pop(key, None)
            else:
                body["spec"][key] = copy.deepcopy(value)
        for key in ("labels", "ownerReferences"):
            if key in patch["metadata"]:
                body["metadata"][key] = patch["metadata"][key]
        self._touch(body)
        self.history.append(self.seen())

    def delete(self, name):
        del self.objects[name]
        self.history.append(self.seen())

    def seen(self):
        """(generation, devices) as a reader sees the pool, None while it must ignore it."""
        items = [body["spec"] for body in self.objects.values()]
        if not items:
            return None
        newest = max(spec["pool"]["generation"] for spec in items)
        items = [spec for spec in items if spec["pool"]["generation"] == newest]
        counts = {spec["pool"]["resourceSliceCount"] for spec in items}
        if counts != {len(items)}:
            return None
        names = [device["name"] for spec in items for device in spec.get("devices", ())]
        if len(set(names)) < len(names):
            return None
        return newest, frozenset(
            json.dumps(device, sort_keys=True) for spec in items for device in spec.get("devices", ())
        )


def offer(pool):
    return frozenset(json.dumps(device, sort_keys=True) for content in pool.slices for device in content.devices)


def carry_out(server, pool, most=None):
    """The writes of one plan, at most `most` of them."""
    steps = plan(pool, server.listed())
    writes = [
        *(lambda item=item: server.delete(item.metadata.name) for item in steps.deletes),
        *(lambda update=update: server.update(update.current.metadata.name, update.patch) for update in steps.updates),
        *(lambda body=body: server.create(body) for _, body in steps.creates),
    ]
    for write in writes[:most]:
        write()
    return len(writes)


def published(pool):
    server = Server()
    carry_out(server, pool)
    return server


@given(pools(), pools())
def test_any_pool_follows_any_other_without_a_mixture(before, after):
    server = published(before)
    generation = server.seen()[0]
    server.history.clear()
    carry_out(server, after)
    assert plan(after, server.listed()) == Plan((), (), ())
    assert not check_pools(server.objects.values())
    assert server.seen()[1] == offer(after)
    assert server.seen()[0] >= generation
    for seen in server.history:
        assert seen is None or seen[1] in (offer(before), offer(after))


@given(pools(), pools(), pools(), st.integers(0, 12))
def test_interrupted_anywhere_and_then_wanting_something_else(before, between, after, writes):
    server = published(before)
    carry_out(server, between, most=writes)
    server.history.clear()
    start = server.seen()
    carry_out(server, after)
    assert plan(after, server.listed()) == Plan((), (), ())
    assert server.seen()[1] == offer(after)
    allowed = {offer(after), start[1] if start else offer(after)}
    for seen in server.history:
        assert seen is None or seen[1] in allowed


@given(pools(), st.data())
def test_whatever_is_done_to_the_slices_is_put_right(pool, data):
    server = published(pool)
    for name in list(server.objects):
        body = server.objects[name]
        harm = data.draw(
            st.sampled_from(["none", "delete", "generation", "count", "devices", "owner", "rename", "selector"])
        )
        if harm == "delete":
            del server.objects[name]
        elif harm == "generation":
            body["spec"]["pool"]["generation"] += data.draw(st.integers(-1, 3))
        elif harm == "count":
            body["spec"]["pool"]["resourceSliceCount"] += 1
        elif harm == "devices":
            body["spec"]["devices"] = [*body["spec"].get("devices", ()), {"name": "intruder"}]
        elif harm == "owner":
            body["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "old"}]
        elif harm == "rename":
            del server.objects[name]
            body["metadata"]["name"] = name + "x"
            server.objects[name + "x"] = body
        elif harm == "selector":
            body["spec"]["nodeSelector"] = {"nodeSelectorTerms": [{}]}
    carry_out(server, pool)
    assert plan(pool, server.listed()) == Plan((), (), ())
    assert server.seen()[1] == offer(pool)
    assert not check_pools(server.objects.values())


@given(pools(), pools())
def test_the_generation_stays_only_where_one_write_does_it(before, after):
    server = published(before)
    generation = server.seen()[0]
    steps = plan(after, server.listed())
    carry_out(server, after)
    if server.seen()[0] == generation:
        assert len(steps.updates) + len(steps.creates) <= 1
        assert not steps.creates


@settings(max_examples=50)
@given(pools())
def test_nothing_is_written_twice(pool):
    server = published(pool)
    assert carry_out(server, pool) == 0


def test_obsolete_slices_go_before_anything_is_written():
    before = Pool("d.example.com", "n1", (SliceContent((device("a", 0),)), SliceContent((device("b", 0),))))
    after = Pool("d.example.com", "n1", (SliceContent((device("a", 0),)),))
    server = published(before)
    steps = plan(after, server.listed())
    assert [item.spec.devices[0].name for item in steps.deletes] == ["b"]
    assert [update.index for update in steps.updates] == [0]
    carry_out(server, after)
    assert server.history[-2:] == [None, (1, offer(after))]


def test_the_body_of_a_new_slice_carries_the_raised_generation():
    pool = Pool("d.example.com", "n1", (SliceContent((device("a", 0),)),))
    server = published(pool)
    server.objects[next(iter(server.objects))]["spec"]["pool"]["generation"] = 41
    wider = Pool("d.example.com", "n1", (*pool.slices, SliceContent((device("b", 0),))))
    steps = plan(wider, server.listed())
    assert [body for _, body in steps.creates] == [slice_body(wider, 1, 42)]
    assert [update.patch["spec"]["pool"]["generation"] for update in steps.updates] == [42]
