"""Which nodes the volume plugins refuse, with the words for people. tests/conformance holds all of it
against kube-scheduler's own plugins; here are the stories.
"""

import msgspec
import pytest

from controller.cluster.nodes.node_labels import NodeLabels
from controller.cluster.nodes.nodes import NodeColumns, place
from controller.cluster.pods.pod_names import PodNames
from controller.cluster.pods.pod_shapes import PodShapes
from controller.reasons.catalogue import PLUGINS
from controller.rules.volumes.volume_book import VolumeBook
from controller.rules.volumes.volume_plugins import CODES, VolumeVerdicts
from hami_dra.api import kinds, names

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
BY_NAME = {kind.name: kind for kind in kinds.ALL}


class World:
    """Nodes a, b, c in the zones 1, 1, 2."""

    def __init__(self, nodes=(("a", "1"), ("b", "1"), ("c", "2"))):
        self.nodes = NodeColumns()
        self.book = VolumeBook(self.nodes, NodeLabels(self.nodes), PodNames(), PodShapes())
        self.filters = VolumeVerdicts(self.nodes, self.book)
        for name, zone in nodes:
            self.node(name, zone)

    def node(self, name, zone):
        self.nodes.put(read("Node", {"name": name, "labels": {HOST: name, ZONE: zone}}))

    def put(self, kind, name, namespace="", *, labels=None, annotations=None, gone=False, **fields):
        metadata = {"name": name, "uid": f"uid-{name}", "labels": labels or {}, "annotations": annotations or {}}
        if namespace:
            metadata["namespace"] = namespace
        if fields.pop("deleting", False):
            metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        found = read(kind, metadata, **fields)
        self.book.changed(kind, found if gone else None, None if gone else found)

    def storage_class(self, name, mode="WaitForFirstConsumer", provisioner="csi.example.com", **rest):
        self.put("StorageClass", name, volumeBindingMode=mode, provisioner=provisioner, **rest)

    def volume(
        self, name, *, size="10Gi", storage_class="", phase="Available", where=None, claim=None, labels=None, **spec
    ):
        spec = {
            "capacity": {"storage": size},
            "storageClassName": storage_class,
            "accessModes": ["ReadWriteOnce"],
            **spec,
        }
        if where is not None:
            key, *values = where
            term = {"matchExpressions": [{"key": key, "operator": "In", "values": values}]}
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [term]}}
        if claim is not None:
            spec["claimRef"] = {"namespace": "team", "name": claim, "uid": f"uid-{claim}"}
        self.put("PersistentVolume", name, labels=labels, spec=spec, status={"phase": phase})

    def claim(
        self, name, *, bound="", storage_class=None, size="8Gi", modes=("ReadWriteOnce",), annotations=None, **rest
    ):
        spec = {"accessModes": list(modes), "resources": {"requests": {"storage": size}}, "volumeName": bound}
        if storage_class is not None:
            spec["storageClassName"] = storage_class
        annotations = {**(annotations or {}), **({names.BIND_COMPLETED: "yes"} if bound else {})}
        rest.setdefault("status", {"phase": "Bound" if bound else "Pending"})
        self.put(
            "PersistentVolumeClaim",
            name,
            "team",
            annotations=annotations,
            spec={**spec, **rest.pop("spec", {})},
            **rest,
        )

    def bound(self, name, *, where=None, driver="csi.example.com", modes=("ReadWriteOnce",)):
        """A claim that is bound to the volume `pv-<name>`."""
        self.volume(
            f"pv-{name}", where=where, claim=name, phase="Bound", csi={"driver": driver, "volumeHandle": f"h-{name}"}
        )
        self.claim(name, bound=f"pv-{name}", modes=modes)

    def run(self, pod, node):
        self.book.add(pod.metadata.uid, place(pod, node))

    def stop(self, pod, node):
        self.book.remove(pod.metadata.uid, place(pod, node))

    def refused(self, pod):
        """Node → (plugin, reason) of the first plugin that refuses it."""
        verdict = self.filters.of(pod, None)
        found = {}
        for name in self.nodes.names:
            row = self.nodes.index_of(name)
            for code in CODES:
                if verdict.held is not None and verdict.held.code == code:
                    found[name] = tuple(verdict.held.sentence.split(": ", 1))
                    break
                refused, reason = verdict.refusals.get(code, (None, None))
                if refused is not None and refused[row]:
                    found[name] = (PLUGINS[code], reason(row))
                    break
        return found

    def fits(self, pod):
        return "".join(sorted({*self.nodes.names} - self.refused(pod).keys()))

    def held(self, pod):
        held = self.filters.of(pod, None).held
        return held and held.sentence.split(": ", 1)[1]


def read(kind, metadata, **fields):
    return msgspec.json.decode(msgspec.json.encode({"metadata": metadata, **fields}), type=BY_NAME[kind].type)


def pod(*claims, name="p", **volumes):
    listed = [
        {"name": f"v{number}", "persistentVolumeClaim": {"claimName": claim}} for number, claim in enumerate(claims)
    ]
    listed += [{"name": f"i{number}", kind: source} for number, (kind, source) in enumerate(volumes.items())]
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}"}
    return read("Pod", metadata, spec={"volumes": listed})


@pytest.fixture
def world():
    return World()


# --- bound volumes -----------------------------------------------------------------------------------------------------------


def test_a_local_volume_is_on_its_node(world):
    world.bound("data", where=(HOST, "b"))
    assert world.fits(pod("data")) == "b"
    assert world.refused(pod("data"))["a"] == ("VolumeBinding", "volume pv-data is on b")


def test_a_zonal_volume_is_in_its_zone(world):
    world.bound("data", where=(ZONE, "1"))
    assert world.fits(pod("data")) == "ab"
    assert world.refused(pod("data"))["c"] == ("VolumeBinding", f"volume pv-data is on nodes with {ZONE} In (1)")


def test_a_volume_that_only_has_zone_labels(world):
    world.volume("pv-data", claim="data", phase="Bound", labels={ZONE: "2"})
    world.claim("data", bound="pv-data")
    assert world.fits(pod("data")) == "c"
    plugin, reason = world.refused(pod("data"))["a"]
    assert (plugin, reason) == ("VolumeZone", f"volume pv-data is in {ZONE} 2, and the node is in {ZONE} 1")


def test_a_node_that_changes_its_zone(world):
    world.bound("data", where=(ZONE, "2"))
    assert world.fits(pod("data")) == "c"
    world.node("a", "2")
    assert world.fits(pod("data")) == "ac"


# --- claims that hold the pod ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda world: None, "PersistentVolumeClaim team/data does not exist"),
        (lambda world: world.claim("data", deleting=True), "PersistentVolumeClaim team/data is being deleted"),
        (
            lambda world: world.claim("data", bound="gone", status={"phase": "Lost"}),
            "PersistentVolumeClaim team/data has lost its PersistentVolume gone",
        ),
        (lambda world: world.claim("data"), "PersistentVolumeClaim team/data has no StorageClass and is not bound"),
        (lambda world: world.claim("data", storage_class="fast"), "its StorageClass fast does not exist"),
        (lambda world: world.claim("data", storage_class="now"), "its StorageClass now binds immediately"),
        (
            lambda world: world.claim("data", spec={"volumeName": "mine"}),
            "PersistentVolumeClaim team/data is not yet bound to PersistentVolume mine",
        ),
        (
            lambda world: world.claim("data", bound="gone"),
            "PersistentVolumeClaim team/data is bound to PersistentVolume gone, which does not exist",
        ),
    ],
)
def test_a_claim_that_holds_the_pod_is_named(world, make, words):
    world.storage_class("now", "Immediate")
    make(world)
    assert words in world.held(pod("data"))
    assert world.fits(pod("data")) == ""


def test_the_claim_that_comes_and_is_bound_lets_the_pod_go(world):
    assert world.held(pod("data"))
    world.claim("data", storage_class="")
    assert world.held(pod("data"))
    world.bound("data", where=(ZONE, "1"))
    assert (world.held(pod("data")), world.fits(pod("data"))) == (None, "ab")


def test_a_claim_for_one_pod_at_a_time(world):
    world.bound("data", modes=("ReadWriteOncePod",))
    first, second = pod("data", name="first"), pod("data", name="second")
    assert world.fits(first) == "abc"
    unused = []
    world.book.on_unused = unused.append
    world.run(first, "a")
    assert "is ReadWriteOncePod, and Pod team/first uses it" in world.held(second)
    assert world.held(first) is None  # it does not stand in its own way
    world.stop(first, "a")
    assert (world.held(second), unused) == (None, ["team/data"])
    world.run(first, "a-node-that-is-gone")
    assert world.held(second) is None


def test_an_ephemeral_volume_belongs_to_the_pod_with_the_uid_of_its_owner(world):
    ephemeral = pod(name="p", ephemeral={})
    assert "of the ephemeral volume i0 is not created yet" in world.held(ephemeral)
    world.storage_class("wait")
    owner = {"kind": "Pod", "name": "p", "uid": "uid-p", "controller": True}
    for uid, words in (("uid-of-an-earlier-p", "was not made for this pod"), ("uid-p", None)):
        spec = {"resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "wait"}
        metadata = {"name": "p-i0", "namespace": "team", "uid": "c", "ownerReferences": [{**owner, "uid": uid}]}
        world.book.changed("PersistentVolumeClaim", None, read("PersistentVolumeClaim", metadata, spec=spec))
        assert (words is None) == (world.held(ephemeral) is None)
        assert words is None or words in world.held(ephemeral)


# --- claims that wait for the pod ----------------------------------------------------------------------------------------------


def test_the_smallest_free_volume_that_fits_is_taken(world):
    world.storage_class("local", provisioner="kubernetes.io/no-provisioner")
    world.claim("data", storage_class="local", size="8Gi")
    world.volume("small", size="5Gi", storage_class="local", where=(HOST, "a"))
    world.volume("large", size="50Gi", storage_class="local", where=(HOST, "b"))
    world.volume("right", size="10Gi", storage_class="local", where=(HOST, "b", "c"))
    world.volume("taken", size="10Gi", storage_class="local", where=(HOST, "a"), claim="other")
    world.volume("failed", size="10Gi", storage_class="local", where=(HOST, "a"), phase="Failed")
    assert world.fits(pod("data")) == "bc"
    plugin, reason = world.refused(pod("data"))["a"]
    assert plugin == "VolumeBinding"
    assert reason == "no free PersistentVolume of StorageClass local fits PersistentVolumeClaim team/data (8Gi) there"
    world.run(pod("data"), "b")
    world.claim("more", storage_class="local", size="8Gi")
    assert world.fits(pod("more", name="q")) == "b", "the large one: the right one is reserved"


def test_of_two_pods_that_need_one_volume_the_first_holds_it_until_it_gives_up(world):
    world.storage_class("local", provisioner="kubernetes.io/no-provisioner")
    world.volume("only", storage_class="local", where=(HOST, "b"))
    for name in ("one", "two"):
        world.claim(name, storage_class="local")
    first, second = pod("one", name="first"), pod("two", name="second")
    world.run(first, "b")
    assert (world.fits(second), world.fits(first)) == ("", "b")
    world.stop(first, "b")
    assert world.fits(second) == "b"
    world.run(first, "b")
    world.volume(
        "only", storage_class="local", where=(HOST, "b"), claim="one", phase="Bound"
    )  # kube-scheduler bound it
    world.claim("one", storage_class="local", bound="only")
    world.stop(first, "b")
    assert world.fits(second) == "", "it is not free because the pod is gone"


def test_two_claims_of_a_pod_get_two_volumes(world):
    world.storage_class("local", provisioner="kubernetes.io/no-provisioner")
    for name in ("one", "two"):
        world.claim(name, storage_class="local")
    world.volume("a1", storage_class="local", where=(HOST, "a"))
    world.volume("b1", storage_class="local", where=(HOST, "b"))
    world.volume("b2", storage_class="local", where=(HOST, "b"))
    assert world.fits(pod("one", "two")) == "b"


def test_a_volume_is_made_only_where_its_class_may(world):
    topology = [{"matchLabelExpressions": [{"key": ZONE, "values": ["2"]}]}]
    world.storage_class("wait", allowedTopologies=topology)
    world.claim("data", storage_class="wait")
    assert world.fits(pod("data")) == "c"
    assert world.refused(pod("data"))["a"][1] == f"StorageClass wait makes volumes only on nodes with {ZONE} In (2)"


def test_a_volume_is_made_only_where_there_is_room(world):
    world.storage_class("wait")
    world.claim("data", storage_class="wait", size="8Gi")
    assert world.fits(pod("data")) == "abc"
    world.put("CSIDriver", "csi.example.com", spec={"storageCapacity": True})
    assert world.fits(pod("data")) == ""
    for name, zone, amount in (("one", "1", "5Gi"), ("two", "2", "50Gi")):
        topology = {"matchLabels": {ZONE: zone}}
        world.put(
            "CSIStorageCapacity", name, "kube-system", storageClassName="wait", capacity=amount, nodeTopology=topology
        )
    assert world.fits(pod("data")) == "c"
    assert "can make volumes of at most 5368709120 bytes there" in world.refused(pod("data"))["a"][1]
    world.put("CSIStorageCapacity", "two", "kube-system", gone=True, storageClassName="wait")
    assert world.fits(pod("data")) == ""


def test_a_volume_that_is_being_made_is_waited_for_on_its_node(world):
    world.storage_class("wait")
    world.claim("data", storage_class="wait", annotations={names.SELECTED_NODE: "b"})
    assert world.fits(pod("data")) == "b"
    assert "is being made for node b" in world.refused(pod("data"))["a"][1]


def test_volumes_are_being_bound_from_the_choice_of_kube_scheduler_on(world):
    world.storage_class("wait")
    world.claim("data", storage_class="wait")
    assert not world.book.is_binding(pod("data"), "b")
    world.claim("data", storage_class="wait", annotations={names.SELECTED_NODE: "b"})
    assert world.book.is_binding(pod("data"), "b")
    assert not world.book.is_binding(pod("data"), "a")
    world.bound("data")
    assert not world.book.is_binding(pod("data"), "b")


def test_a_second_pod_goes_where_a_decision_will_have_the_shared_volume_made(world):
    world.storage_class("wait")
    world.claim("data", storage_class="wait")
    world.run(pod("data", name="first"), "c")
    assert world.fits(pod("data", name="second")) == "c"
    world.run(pod("data", name="second"), "c")
    world.stop(pod("data", name="first"), "c")
    assert world.fits(pod("data", name="third")) == "c", "the second pod counts on it, too"
    world.stop(pod("data", name="second"), "c")
    assert world.fits(pod("data", name="third")) == "abc"


def test_a_pod_on_its_node_gets_its_volume_reserved_once_all_its_claims_exist(world):
    """Nothing was reserved for it until the controller started again: random lives 3209818959 and 3209819943."""
    world.storage_class("made")
    world.claim("shared", storage_class="made")
    world.run(pod("shared", "late"), "a")
    assert world.fits(pod("shared", name="q")) == "abc"
    world.claim("late", storage_class="made")
    assert world.fits(pod("shared", name="q")) == "a"


def test_a_volume_that_is_made_again_is_kept_for_the_pod_that_counts_on_it(world):
    world.storage_class("local", provisioner="kubernetes.io/no-provisioner")
    for name in ("one", "two"):
        world.claim(name, storage_class="local")
    world.volume("only", storage_class="local", where=(HOST, "b"))
    world.run(pod("one", name="first"), "b")
    world.put("PersistentVolume", "only", gone=True, spec={"storageClassName": "local"})
    world.volume("only", storage_class="local", where=(HOST, "b"))
    assert world.fits(pod("two", name="second")) == ""
    world.stop(pod("one", name="first"), "b")
    assert world.fits(pod("two", name="second")) == "b"


def test_what_a_pod_holds_itself_does_not_bind_it_to_its_node(world):
    world.storage_class("wait")
    world.claim("data", storage_class="wait")
    first, second = pod("data", name="first"), pod("data", name="second")
    world.run(first, "c")
    assert world.fits(first) == "abc"
    assert world.fits(second) == "c", "it still counts for others"
    world.run(second, "c")
    world.stop(first, "c")
    assert world.fits(pod("data", name="third")) == "c", "the second pod holds the volume as well"


# --- limits and disks ----------------------------------------------------------------------------------------------------------


def csi_node(world, name, count):
    driver = {"name": "csi.example.com", "nodeID": name, **({} if count is None else {"allocatable": {"count": count}})}
    world.put("CSINode", name, spec={"drivers": [driver]})


def test_a_node_takes_as_many_volumes_as_its_driver_says(world):
    for name, count in (("a", 1), ("b", 2)):
        csi_node(world, name, count)
    for name in ("one", "two", "three"):
        world.bound(name)
    world.run(pod("one", name="there"), "a")
    assert world.fits(pod("two")) == "bc"
    assert world.refused(pod("two"))["a"] == (
        "NodeVolumeLimits",
        "CSI driver csi.example.com attaches at most 1 volumes to the node: it has 1, and the pod needs 1 more",
    )
    assert world.fits(pod("one")) == "abc", "the volume is there already"
    source = {"persistentVolumeName": "pv-three"}
    world.put("VolumeAttachment", "x", spec={"attacher": "csi.example.com", "nodeName": "b", "source": source})
    assert world.fits(pod("one", "two")) == "c", "a volume that is still attached counts"
    world.put("VolumeAttachment", "x", gone=True, spec={})
    world.stop(pod("one", name="there"), "a")
    assert world.fits(pod("one", "two")) == "bc"
    csi_node(world, "a", None)
    assert world.fits(pod("one", "two")) == "abc"


@pytest.mark.parametrize(("scaling", "fits"), [(True, "a"), (False, "abc")])
def test_a_node_without_a_driver_that_must_be_there(world, scaling, fits):
    csi_node(world, "a", None)
    world.put("CSIDriver", "csi.example.com", spec={"preventPodSchedulingIfMissing": True})
    world.bound("data")
    world.book.limits.scaling = scaling
    assert world.fits(pod("data")) == fits
    if scaling:
        assert world.refused(pod("data"))["b"][1] == "CSI driver csi.example.com is not installed on the node"


@pytest.mark.parametrize(
    ("kind", "mine", "theirs", "fits"),
    [
        ("gcePersistentDisk", {"pdName": "d"}, {"pdName": "d"}, "bc"),
        ("gcePersistentDisk", {"pdName": "d", "readOnly": True}, {"pdName": "d", "readOnly": True}, "abc"),
        ("gcePersistentDisk", {"pdName": "d", "readOnly": True}, {"pdName": "d"}, "bc"),
        ("awsElasticBlockStore", {"volumeID": "v", "readOnly": True}, {"volumeID": "v", "readOnly": True}, "bc"),
        ("iscsi", {"iqn": "i"}, {"iqn": "other"}, "abc"),
        ("iscsi", {"iqn": "i"}, {"iqn": "i"}, "bc"),
        ("rbd", {"image": "i", "monitors": ["m1", "m2"]}, {"image": "i", "monitors": ["m2", "m3"]}, "bc"),
        ("rbd", {"image": "i", "monitors": ["m1"]}, {"image": "i", "monitors": ["m3"]}, "abc"),
    ],
)
def test_a_disk_is_used_by_one_pod_of_a_node(world, kind, mine, theirs, fits):
    world.run(pod(name="other", **{kind: theirs}), "a")
    assert world.fits(pod(**{kind: mine})) == fits
    if fits == "bc":
        plugin, reason = world.refused(pod(**{kind: mine}))["a"]
        assert plugin == "VolumeRestrictions"
        assert reason.endswith("is in use there by Pod team/other")


# --- what cannot be read ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [kinds.PERSISTENT_VOLUME_CLAIM, kinds.PERSISTENT_VOLUME, kinds.STORAGE_CLASS])
def test_nothing_is_concluded_from_what_may_not_be_read(world, kind):
    assert world.fits(pod("data")) == ""
    world.book.set_readable(kind, False)
    assert (world.held(pod("data")), world.fits(pod("data"))) == (None, "abc")
    world.book.set_readable(kind, True)
    assert world.fits(pod("data")) == ""


def test_a_pod_without_volumes_is_not_looked_into(world):
    assert world.filters.of(pod(), None).refusals == {}
