"""What every `Cluster` must do, whoever stands behind it: run here on memory, and in tests/e2e on a real API server."""

import asyncio
from contextlib import aclosing

import pytest

from hami_dra.api import kinds
from hami_dra.kube.protocol import (
    AlreadyExists,
    Broken,
    Cluster,
    ClusterError,
    Conflict,
    Gone,
    Invalid,
    NotFound,
    Protected,
)
from tests.support.steered_cluster import SteeredCluster

FINALIZER = "hami.io/contract-test"


def pod(name, **spec):
    return {
        "metadata": {"name": name},
        "spec": {
            "schedulingGates": [{"name": "hami.io/contract-test"}],
            "containers": [{"name": "main", "image": "none"}],
            **spec,
        },
    }


def claim(name, **metadata):
    request = {"name": "card", "exactly": {"deviceClassName": "contract-test"}}
    return {"metadata": {"name": name, **metadata}, "spec": {"devices": {"requests": [request]}}}


def config_map(name, data=None, **metadata):
    return {"metadata": {"name": name, **metadata}, "data": data or {}}


def result(number=0, **more):
    return {"request": "card", "driver": "contract.hami.io", "pool": "pool", "device": f"card-{number}", **more}


def allocation(*results):
    terms = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}]
    return {"devices": {"results": list(results)}, "nodeSelector": {"nodeSelectorTerms": terms}}


def reserved(count):
    return [{"resource": "pods", "name": f"pod-{i}", "uid": f"00000000-0000-4000-8000-{i:012}"} for i in range(count)]


class ClusterContract:
    """Subclasses give the fixtures `cluster` (a Cluster) and `space` (an empty namespace)."""

    async def events(self, cluster, kind, since, space, count, **selectors):
        """The next `count` events as (type, name); without bookmarks and the ConfigMap that every namespace is given."""
        seen = []
        async with (
            asyncio.timeout(30),
            aclosing(cluster.watch(kind, resource_version=since, namespace=space, **selectors)) as events,
        ):
            async for event in events:
                if event.type != "BOOKMARK" and event.object.metadata.name != "kube-root-ca.crt":
                    seen.append((event.type, event.object.metadata.name))
                if len(seen) == count:
                    return seen
        raise AssertionError(f"the watch ended after {seen}")

    async def status(self, cluster, space, name, status, **metadata):
        patch = {"status": status} | ({"metadata": metadata} if metadata else {})
        return await cluster.patch(kinds.RESOURCE_CLAIM, name, patch, namespace=space, subresource="status")

    # --- the server ------------------------------------------------------------------------------------------------

    async def test_says_its_version_and_what_it_serves(self, cluster, space):
        version = await cluster.version()
        assert version.at_least(1, 36)
        assert version.git_version.startswith("v1.")
        assert await cluster.serves(kinds.RESOURCE_CLAIM)
        assert await cluster.serves(kinds.POD)
        assert await cluster.serves(kinds.DEVICE_TAINT_RULE) == version.at_least(1, 37)
        assert not await cluster.serves(kinds.DEVICE_TAINT_RULE_V1BETA2)

    # --- create ----------------------------------------------------------------------------------------------------

    async def test_create_fills_in_what_the_server_owns(self, cluster, space):
        made = await cluster.create(kinds.RESOURCE_CLAIM, claim("a"), namespace=space)
        assert made.key == f"{space}/a"
        assert made.metadata.uid
        assert made.metadata.creation_timestamp
        assert int(made.metadata.resource_version) > 0
        assert made.spec.devices.requests[0].exactly.allocation_mode == "ExactCount"
        assert made.spec.devices.requests[0].exactly.count == 1
        assert await cluster.get(kinds.RESOURCE_CLAIM, "a", space) == made

    async def test_create_twice_is_refused(self, cluster, space):
        await cluster.create(kinds.CONFIG_MAP, config_map("a"), namespace=space)
        with pytest.raises(AlreadyExists):
            await cluster.create(kinds.CONFIG_MAP, config_map("a"), namespace=space)

    async def test_generated_names_differ(self, cluster, space):
        body = {"metadata": {"generateName": "a-"}}
        names = {(await cluster.create(kinds.CONFIG_MAP, body, namespace=space)).metadata.name for _ in range(5)}
        assert len(names) == 5
        assert all(name.startswith("a-") and len(name) > 2 for name in names)

    async def test_the_namespace_may_come_from_the_body(self, cluster, space):
        made = await cluster.create(kinds.CONFIG_MAP, config_map("a", namespace=space))
        assert made.metadata.namespace == space

    async def test_two_different_namespaces_are_refused(self, cluster, space):
        with pytest.raises(Invalid):
            await cluster.create(kinds.CONFIG_MAP, config_map("a", namespace="elsewhere"), namespace=space)

    async def test_a_resource_version_on_create_is_refused(self, cluster, space):
        with pytest.raises(ClusterError):
            await cluster.create(kinds.CONFIG_MAP, config_map("a", resourceVersion="1"), namespace=space)
        with pytest.raises(NotFound):
            await cluster.get(kinds.CONFIG_MAP, "a", space)

    async def test_a_dry_run_stores_nothing(self, cluster, space):
        made = await cluster.create(kinds.CONFIG_MAP, config_map("a"), namespace=space, dry_run=True)
        assert made.metadata.name == "a"
        with pytest.raises(NotFound):
            await cluster.get(kinds.CONFIG_MAP, "a", space)

    async def test_unknown_fields_survive_and_status_is_not_created(self, cluster, space):
        body = pod("a", dnsPolicy="Default")
        await cluster.create(kinds.POD, body | {"status": {"phase": "Running"}}, namespace=space)
        raw = await cluster.get_raw(kinds.POD, "a", space)
        assert raw["spec"]["dnsPolicy"] == "Default"
        assert raw["status"]["phase"] == "Pending"
        assert raw["kind"] == "Pod"
        assert raw["apiVersion"] == "v1"

    async def test_a_pod_cannot_be_born_gated_and_bound(self, cluster, space):
        with pytest.raises(Invalid):
            await cluster.create(kinds.POD, pod("a", nodeName="node-1"), namespace=space)

    # --- patch -----------------------------------------------------------------------------------------------------

    async def test_an_old_version_cannot_be_patched(self, cluster, space):
        first = await cluster.create(kinds.CONFIG_MAP, config_map("a"), namespace=space)
        guard = {"resourceVersion": first.metadata.resource_version}
        await cluster.patch(kinds.CONFIG_MAP, "a", {"metadata": guard, "data": {"x": "1"}}, namespace=space)
        with pytest.raises(Conflict):
            await cluster.patch(kinds.CONFIG_MAP, "a", {"metadata": guard, "data": {"x": "2"}}, namespace=space)
        now = await cluster.get(kinds.CONFIG_MAP, "a", space)
        assert now.data == {"x": "1"}
        assert int(now.metadata.resource_version) > int(first.metadata.resource_version)

    async def test_a_patch_meant_for_an_earlier_object_is_a_conflict(self, cluster, space):
        await cluster.create(kinds.RESOURCE_CLAIM, claim("a"), namespace=space)
        other = {"uid": "00000000-0000-4000-8000-000000000000"}
        with pytest.raises(Conflict):
            await cluster.patch(kinds.RESOURCE_CLAIM, "a", {"metadata": other}, namespace=space)
        with pytest.raises(Conflict):
            await self.status(cluster, space, "a", {"allocation": allocation(result())}, **other)

    async def test_null_removes_and_lists_are_replaced(self, cluster, space):
        labels = {"keep": "1", "drop": "1"}
        await cluster.create(kinds.CONFIG_MAP, config_map("a", labels=labels, finalizers=[FINALIZER]), namespace=space)
        patch = {"metadata": {"labels": {"drop": None}, "finalizers": None}}
        patched = await cluster.patch(kinds.CONFIG_MAP, "a", patch, namespace=space)
        assert patched.metadata.labels == {"keep": "1"}
        assert patched.metadata.finalizers == ()

    async def test_a_patch_without_effect_makes_no_new_version(self, cluster, space):
        first = await cluster.create(kinds.CONFIG_MAP, config_map("a", {"x": "1"}), namespace=space)
        again = await cluster.patch(
            kinds.CONFIG_MAP, "a", {"data": {"x": "1"}, "metadata": {"finalizers": []}}, namespace=space
        )
        assert again == first

    async def test_apply_makes_and_changes(self, cluster, space):
        options = {"namespace": space, "manager": "m"}
        made = await cluster.patch(kinds.CONFIG_MAP, "a", config_map("a", {"x": "1"}), **options)
        assert made.data == {"x": "1"}
        changed = await cluster.patch(kinds.CONFIG_MAP, "a", config_map("a", {"x": "2"}), **options)
        assert changed.data == {"x": "2"}
        assert changed.metadata.uid == made.metadata.uid

    async def test_what_is_not_there_cannot_be_touched(self, cluster, space):
        with pytest.raises(NotFound):
            await cluster.get(kinds.CONFIG_MAP, "a", space)
        with pytest.raises(NotFound):
            await cluster.patch(kinds.CONFIG_MAP, "a", {"data": {}}, namespace=space)
        with pytest.raises(NotFound):
            await cluster.delete(kinds.CONFIG_MAP, "a", namespace=space)
        with pytest.raises(NotFound):
            await cluster.list(kinds.DEVICE_TAINT_RULE_V1BETA2)
        with pytest.raises(Invalid):
            await cluster.get(kinds.CONFIG_MAP, "a")

    async def test_gates_are_only_removed(self, cluster, space):
        await cluster.create(kinds.POD, pod("a"), namespace=space)
        more = {"spec": {"schedulingGates": [{"name": FINALIZER}, {"name": "hami.io/second"}]}}
        with pytest.raises(Invalid):
            await cluster.patch(kinds.POD, "a", more, namespace=space)
        with pytest.raises(Invalid):
            await cluster.patch(kinds.POD, "a", {"spec": {"nodeName": "node-1"}}, namespace=space)
        narrowed = {"spec": {"nodeSelector": {"zone": "a"}}}
        assert (await cluster.patch(kinds.POD, "a", narrowed, namespace=space)).spec.node_selector == {"zone": "a"}
        lifted = await cluster.patch(kinds.POD, "a", {"spec": {"schedulingGates": []}}, namespace=space)
        assert lifted.spec.scheduling_gates == ()

    # --- status ----------------------------------------------------------------------------------------------------

    async def test_spec_and_status_are_written_apart(self, cluster, space):
        await cluster.create(kinds.RESOURCE_CLAIM, claim("a"), namespace=space)
        both = {
            "metadata": {"labels": {"x": "1"}, "finalizers": [FINALIZER]},
            "status": {"allocation": allocation(result())},
        }
        main = await cluster.patch(kinds.RESOURCE_CLAIM, "a", both, namespace=space)
        assert main.metadata.labels == {"x": "1"}
        assert main.status.allocation is None
        both["metadata"] = {"labels": {"x": "2"}, "finalizers": []}
        status = await cluster.patch(kinds.RESOURCE_CLAIM, "a", both, namespace=space, subresource="status")
        assert status.metadata.labels == {"x": "1"}
        assert status.metadata.finalizers == (FINALIZER,)
        assert status.status.allocation.devices.results[0].device == "card-0"
        await cluster.patch(kinds.RESOURCE_CLAIM, "a", {"metadata": {"finalizers": None}}, namespace=space)

    async def test_a_status_write_obeys_the_guard(self, cluster, space):
        old = await cluster.create(kinds.RESOURCE_CLAIM, claim("a"), namespace=space)
        await cluster.patch(kinds.RESOURCE_CLAIM, "a", {"metadata": {"labels": {"x": "1"}}}, namespace=space)
        guard = {"resourceVersion": old.metadata.resource_version}
        with pytest.raises(Conflict):
            await self.status(cluster, space, "a", {"allocation": allocation(result())}, **guard)

    async def test_an_allocation_is_set_cleared_and_set_but_never_changed(self, cluster, space):
        await cluster.create(kinds.RESOURCE_CLAIM, claim("a"), namespace=space)
        await self.status(cluster, space, "a", {"allocation": allocation(result(0))})
        with pytest.raises(Invalid):
            await self.status(cluster, space, "a", {"allocation": allocation(result(1))})
        await self.status(cluster, space, "a", {"allocation": None})
        again = await self.status(cluster, space, "a", {"allocation": allocation(result(1))})
        assert again.status.allocation.devices.results[0].device == "card-1"

    @pytest.mark.parametrize(
        ("status", "words"),
        [
            ({"reservedFor": reserved(1)}, "reservedFor"),
            ({"allocation": allocation(result()), "reservedFor": reserved(257)}, "256"),
            ({"allocation": allocation(result()), "reservedFor": reserved(1) * 2}, "reservedFor"),
            ({"allocation": allocation(*map(result, range(33)))}, "32"),
            ({"allocation": allocation(result(request="other"))}, "request"),
            ({"allocation": allocation(result(shareID="no-uuid"))}, "shareID"),
            ({"allocation": allocation(result(shareID="A" * 8 + "-0000-4000-8000-000000000000"))}, "shareID"),
            ({"allocation": allocation(result(pool=""))}, "pool"),
        ],
        ids=["unallocated", "reserved-257", "same-twice", "results-33", "request", "share-id", "share-case", "pool"],
    )
    async def test_a_wrong_claim_status_is_refused(self, cluster, space, status, words):
        await cluster.create(kinds.RESOURCE_CLAIM, claim("a"), namespace=space)
        with pytest.raises(Invalid, match=words):
            await self.status(cluster, space, "a", status)

    async def test_the_most_that_a_claim_may_hold(self, cluster, space):
        await cluster.create(kinds.RESOURCE_CLAIM, claim("a"), namespace=space)
        full = {"allocation": allocation(*map(result, range(32))), "reservedFor": reserved(256)}
        written = await self.status(cluster, space, "a", full)
        assert len(written.status.reserved_for) == 256
        assert len(written.status.allocation.devices.results) == 32

    async def test_the_wishes_of_a_claim_are_fixed(self, cluster, space):
        await cluster.create(kinds.RESOURCE_CLAIM, claim("a"), namespace=space)
        other = {"spec": {"devices": {"requests": [{"name": "b", "exactly": {"deviceClassName": "b"}}]}}}
        with pytest.raises(Invalid):
            await cluster.patch(kinds.RESOURCE_CLAIM, "a", other, namespace=space)

    # --- delete ----------------------------------------------------------------------------------------------------

    async def test_a_finalizer_holds_an_object(self, cluster, space):
        made = await cluster.create(kinds.RESOURCE_CLAIM, claim("a", finalizers=[FINALIZER]), namespace=space)
        await cluster.delete(kinds.RESOURCE_CLAIM, "a", namespace=space)
        held = await cluster.get(kinds.RESOURCE_CLAIM, "a", space)
        assert held.metadata.deletion_timestamp
        more = {"metadata": {"finalizers": [FINALIZER, "hami.io/second"]}}
        with pytest.raises(Invalid):
            await cluster.patch(kinds.RESOURCE_CLAIM, "a", more, namespace=space)
        await cluster.patch(kinds.RESOURCE_CLAIM, "a", {"metadata": {"finalizers": []}}, namespace=space)
        with pytest.raises(NotFound):
            await cluster.get(kinds.RESOURCE_CLAIM, "a", space)
        since = made.metadata.resource_version
        assert await self.events(cluster, kinds.RESOURCE_CLAIM, since, space, 2) == [
            ("MODIFIED", "a"),
            ("DELETED", "a"),
        ]

    async def test_a_claim_on_its_way_out_takes_no_new_consumer(self, cluster, space):
        await cluster.create(kinds.RESOURCE_CLAIM, claim("a", finalizers=[FINALIZER]), namespace=space)
        await cluster.delete(kinds.RESOURCE_CLAIM, "a", namespace=space)
        status = {"allocation": allocation(result()), "reservedFor": reserved(1)}
        with pytest.raises(Invalid):
            await self.status(cluster, space, "a", status)
        await cluster.patch(kinds.RESOURCE_CLAIM, "a", {"metadata": {"finalizers": []}}, namespace=space)

    async def test_delete_checks_its_preconditions(self, cluster, space):
        made = await cluster.create(kinds.CONFIG_MAP, config_map("a"), namespace=space)
        version = int(made.metadata.resource_version)
        with pytest.raises(Conflict):
            await cluster.delete(kinds.CONFIG_MAP, "a", namespace=space, uid="00000000-0000-4000-8000-000000000000")
        with pytest.raises(Conflict):
            await cluster.delete(kinds.CONFIG_MAP, "a", namespace=space, resource_version=f"{version + 1_000}")
        await cluster.delete(
            kinds.CONFIG_MAP,
            "a",
            namespace=space,
            uid=made.metadata.uid,
            resource_version=made.metadata.resource_version,
        )
        with pytest.raises(NotFound):
            await cluster.get(kinds.CONFIG_MAP, "a", space)

    async def test_a_patch_that_names_another_uid_is_refused(self, cluster, space):
        moment = "2026-01-01T00:00:00.000000Z"
        body = {
            "metadata": {"name": "a", "namespace": space},
            "eventTime": moment,
            "reportingController": "hami.io/controller",
            "reportingInstance": "a",
            "action": "Allocate",
            "reason": "Tested",
            "regarding": {"apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": space},
            "note": "n",
            "type": "Normal",
        }
        made = await cluster.create(kinds.EVENT, body, namespace=space)
        series = {"count": 2, "lastObservedTime": moment}
        other = {"metadata": {"uid": "00000000-0000-4000-8000-000000000000"}, "series": series}
        with pytest.raises(Conflict):
            await cluster.patch(kinds.EVENT, "a", other, namespace=space)
        assert "series" not in {k: v for k, v in (await cluster.get_raw(kinds.EVENT, "a", space)).items() if v}
        await cluster.patch(kinds.EVENT, "a", {**other, "metadata": {"uid": made.metadata.uid}}, namespace=space)
        assert (await cluster.get_raw(kinds.EVENT, "a", space))["series"]["count"] == 2

    async def test_what_is_owned_goes_with_its_owner(self, cluster, space):
        owner = await cluster.create(kinds.CONFIG_MAP, config_map("owner"), namespace=space)
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.metadata.uid}
        owned = await cluster.create(kinds.RESOURCE_CLAIM, claim("a", ownerReferences=[reference]), namespace=space)
        await cluster.delete(kinds.CONFIG_MAP, "owner", namespace=space)
        since = owned.metadata.resource_version
        assert await self.events(cluster, kinds.RESOURCE_CLAIM, since, space, 1) == [("DELETED", "a")]

    # --- eviction --------------------------------------------------------------------------------------------------

    async def running(self, cluster, space, name="a"):
        body = {"metadata": {"name": name, "labels": {"app": "a"}}}
        spec = {"containers": [{"name": "main", "image": "none"}], "nodeName": "nowhere"}
        await cluster.create(kinds.POD, {**body, "spec": spec}, namespace=space)
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        return await cluster.patch(kinds.POD, name, {"status": status}, namespace=space, subresource="status")

    async def budget(self, cluster, space, name, least, **status):
        body = {
            "metadata": {"name": name},
            "spec": {"minAvailable": least, "selector": {"matchLabels": {"app": "a"}}},
        }
        await cluster.create(kinds.POD_DISRUPTION_BUDGET, body, namespace=space)
        patch = {
            "status": {
                "observedGeneration": 1,
                "disruptionsAllowed": 0,
                "currentHealthy": 1,
                "desiredHealthy": 1,
                "expectedPods": 1,
            }
            | status
        }
        await cluster.patch(kinds.POD_DISRUPTION_BUDGET, name, patch, namespace=space, subresource="status")

    async def test_an_eviction_is_for_one_pod_of_a_name(self, cluster, space):
        made = await self.running(cluster, space)
        with pytest.raises(Conflict):
            await cluster.evict("a", space, uid="00000000-0000-4000-8000-000000000000")
        await cluster.evict("a", space, uid=made.metadata.uid, grace_period_seconds=0)
        with pytest.raises(NotFound):
            await cluster.get(kinds.POD, "a", space)
        with pytest.raises(NotFound):
            await cluster.evict("a", space)

    async def test_an_eviction_is_refused_by_a_budget_or_tells_the_pod_why(self, cluster, space):
        await self.running(cluster, space)
        await self.budget(cluster, space, "strict", 1)
        with pytest.raises(Protected, match="disruption budget strict needs 1 healthy pods and has 1"):
            await cluster.evict("a", space)
        await self.budget(cluster, space, "second", 0)
        with pytest.raises(Invalid, match="more than one PodDisruptionBudget"):
            await cluster.evict("a", space)
        await cluster.delete(kinds.POD_DISRUPTION_BUDGET, "strict", namespace=space)
        patch = {"status": {"disruptionsAllowed": 1, "desiredHealthy": 0}}
        await cluster.patch(kinds.POD_DISRUPTION_BUDGET, "second", patch, namespace=space, subresource="status")
        await cluster.patch(kinds.POD, "a", {"metadata": {"finalizers": [FINALIZER]}}, namespace=space)
        await cluster.evict("a", space, grace_period_seconds=0)
        raw = await cluster.get_raw(kinds.POD, "a", space)
        assert raw["metadata"]["deletionTimestamp"]
        (condition,) = [each for each in raw["status"]["conditions"] if each["type"] == "DisruptionTarget"]
        assert (condition["status"], condition["reason"]) == ("True", "EvictionByEvictionAPI")
        await cluster.patch(kinds.POD, "a", {"metadata": {"finalizers": None}}, namespace=space)
        with pytest.raises(NotFound):
            await cluster.get(kinds.POD, "a", space)

    # --- list and watch --------------------------------------------------------------------------------------------

    async def test_list_by_namespace_label_and_field(self, cluster, space):
        for name, color in (("a", "red"), ("b", "blue"), ("c", "red")):
            await cluster.create(kinds.CONFIG_MAP, config_map(name, labels={"color": color}), namespace=space)

        async def names(**selectors):
            listing = await cluster.list(kinds.CONFIG_MAP, namespace=space, **selectors)
            return [item.metadata.name for item in listing.items if item.metadata.name in "abc"]

        assert await names() == ["a", "b", "c"]
        assert await names(label_selector="color=red") == ["a", "c"]
        assert await names(label_selector="color in (blue, green)") == ["b"]
        assert await names(label_selector="color!=red,color") == ["b"]
        assert await names(field_selector="metadata.name=b") == ["b"]
        everywhere = await cluster.list(kinds.CONFIG_MAP, label_selector="color")
        assert {item.key for item in everywhere.items} >= {f"{space}/a", f"{space}/b", f"{space}/c"}
        with pytest.raises(Invalid):
            await names(field_selector="data.x=1")
        with pytest.raises(Invalid):
            await names(label_selector="color in red")

    async def test_items_of_a_list_do_not_repeat_their_kind(self, cluster, space):
        await cluster.create(kinds.CONFIG_MAP, config_map("a"), namespace=space)
        (item, *_) = (await cluster.list(kinds.CONFIG_MAP, namespace=space)).items
        assert (item.kind, item.api_version) == ("", "")

    async def test_a_watch_tells_what_came_after_the_list(self, cluster, space):
        await cluster.create(kinds.RESOURCE_CLAIM, claim("before"), namespace=space)
        since = (await cluster.list(kinds.RESOURCE_CLAIM, namespace=space)).resource_version
        await cluster.create(kinds.RESOURCE_CLAIM, claim("a"), namespace=space)
        await cluster.patch(kinds.RESOURCE_CLAIM, "a", {"metadata": {"labels": {"x": "1"}}}, namespace=space)
        await cluster.delete(kinds.RESOURCE_CLAIM, "a", namespace=space)
        assert await self.events(cluster, kinds.RESOURCE_CLAIM, since, space, 3) == [
            ("ADDED", "a"),
            ("MODIFIED", "a"),
            ("DELETED", "a"),
        ]

    async def test_the_version_of_a_collection_is_that_of_its_list(self, cluster, space):
        before = int(await cluster.resource_version(kinds.CONFIG_MAP, namespace=space))
        made = await cluster.create(kinds.CONFIG_MAP, config_map("a"), namespace=space)
        since = await cluster.resource_version(kinds.CONFIG_MAP, namespace=space)
        assert before < int(made.metadata.resource_version) <= int(since)
        assert int((await cluster.list(kinds.CONFIG_MAP, namespace=space)).resource_version) >= int(since)
        await cluster.delete(kinds.CONFIG_MAP, "a", namespace=space)
        assert await self.events(cluster, kinds.CONFIG_MAP, since, space, 1) == [("DELETED", "a")]

    async def test_versions_grow_along_a_watch_and_a_deletion_is_the_newest(self, cluster, space):
        first = await cluster.create(kinds.CONFIG_MAP, config_map("a"), namespace=space)
        second = await cluster.patch(kinds.CONFIG_MAP, "a", {"data": {"x": "1"}}, namespace=space)
        await cluster.delete(kinds.CONFIG_MAP, "a", namespace=space)
        versions = []
        async with (
            asyncio.timeout(30),
            aclosing(
                cluster.watch(kinds.CONFIG_MAP, resource_version=first.metadata.resource_version, namespace=space)
            ) as events,
        ):
            async for event in events:
                if event.object.metadata.name == "a":
                    versions.append(int(event.object.metadata.resource_version))
                if event.type == "DELETED":
                    break
        assert versions[0] == int(second.metadata.resource_version)
        assert versions == sorted(set(versions))
        assert len(versions) == 2

    async def test_a_watch_with_a_selector_sees_objects_come_and_go(self, cluster, space):
        since = (await cluster.list(kinds.CONFIG_MAP, namespace=space)).resource_version
        await cluster.create(kinds.CONFIG_MAP, config_map("a", labels={"on": "no"}), namespace=space)
        for value in ("yes", "no"):
            patch = {"metadata": {"labels": {"on": value}}}
            await cluster.patch(kinds.CONFIG_MAP, "a", patch, namespace=space)
        seen = await self.events(cluster, kinds.CONFIG_MAP, since, space, 2, label_selector="on=yes")
        assert seen == [("ADDED", "a"), ("DELETED", "a")]


class TestMemoryCluster(ClusterContract):
    @pytest.fixture
    def cluster(self):
        return SteeredCluster()

    @pytest.fixture
    def space(self):
        return "contract"

    async def test_a_watch_from_before_the_history_is_gone(self, cluster, space):
        await cluster.create(kinds.CONFIG_MAP, config_map("a"), namespace=space)
        cluster.forget_history()
        with pytest.raises(Gone):
            await self.events(cluster, kinds.CONFIG_MAP, "1", space, 1)

    async def test_a_bounded_history_forgets_the_oldest(self, space):
        cluster = SteeredCluster(history=2)
        versions = [
            (await cluster.create(kinds.CONFIG_MAP, config_map(name), namespace=space)).metadata.resource_version
            for name in "abcd"
        ]
        assert await self.events(cluster, kinds.CONFIG_MAP, versions[1], space, 2) == [("ADDED", "c"), ("ADDED", "d")]
        with pytest.raises(Gone):
            await self.events(cluster, kinds.CONFIG_MAP, versions[0], space, 1)

    async def test_it_is_a_cluster(self, cluster):
        def accepts(cluster: Cluster) -> Cluster:
            return cluster

        assert accepts(cluster) is cluster

    async def test_a_stored_misfit_is_reported_and_the_others_are_read(self, cluster, space):
        good = await cluster.create(kinds.POD, pod("good"), namespace=space)
        cluster.put_raw(kinds.POD, {"metadata": {"name": "bad", "namespace": space}, "spec": {"nodeName": 3}})
        listing = await cluster.list(kinds.POD)
        assert [item.metadata.name for item in listing.items] == ["good"]
        assert [broken.object.key for broken in listing.broken] == [f"{space}/bad"]
        async with aclosing(cluster.watch(kinds.POD, resource_version=good.metadata.resource_version)) as events:
            event = await anext(events)
        assert isinstance(event, Broken)
        assert "nodeName" in event.problem
