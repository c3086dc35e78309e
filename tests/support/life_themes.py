"""Steps of random lives (`tests.support.lives`) that only some lives take, by theme: quotas, volumes, a fabric, names, room.

Names: namespaces, classes and nodes that go and come back as other objects of the same name. Room: pods that others make
room for, with the node nominated, and claims that more pods join.
"""

from contextlib import suppress

from hami_dra.api import kinds, names
from hami_dra.api.podstate import is_bound, is_live, is_pending
from hami_dra.api.quantity import Quantity
from hami_dra.kube.protocol import AlreadyExists, NotFound
from tests.support.harness import DRIVER, SPACE, claim, device_class, gpu_slice, template

HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
VENDOR = "nvidia.hami.io"
"""A driver whose devices count against quotas."""
CHANNELS = "compute-domain.nvidia.com"
CHANNEL_CLASS = "compute-domain-default-channel.nvidia.com"
GPUMEM = "limits.nvidia.com/gpumem"
MIB = 1 << 20
NODES = ("n0", "n1", "n2")
SIZES = (4, 8, 16)
SLOW = 120.0
"""Seconds after which a decision under an older quota has been written, whatever the writes meet."""
STORAGE = {
    "now": ("kubernetes.io/no-provisioner", "Immediate"),
    "local": ("kubernetes.io/no-provisioner", "WaitForFirstConsumer"),
    "made": ("csi.example.com", "WaitForFirstConsumer"),
}
"""StorageClass → provisioner and volumeBindingMode."""
LETTING_GO = "example.com/still-ending"


class Themes:
    """`Life` is one of these. `themes`: those of this life."""

    def themed_steps(self):
        steps = {
            "quotas": [(self.set_quota, 10)],
            "volumes": [(self.add_volume, 6), (self.add_data, 6), (self.data_goes, 4), (self.storage_class_goes, 2)],
            "fabric": [(self.add_domain, 8), (self.rewire, 4), (self.channel_goes, 2)],
            "names": [
                (self.class_goes, 4), (self.namespace_goes, 2), (self.relabel_namespace, 4), (self.another_node, 4),
            ],
            "room": [(self.nominate, 6), (self.make_room, 8), (self.let_go, 6), (self.join_claim, 8)],
        }  # fmt: skip
        return [step for theme in self.themes for step in steps[theme]]

    @property
    def driver(self):
        return VENDOR if "quotas" in self.themes else DRIVER

    def slice_of(self, node, **options):
        return gpu_slice(node, driver=self.driver, **options)

    async def furnish(self):
        """What is there before a controller starts."""
        await self.furnish_namespace()
        if self.driver != DRIVER:
            await self.cluster.delete(kinds.DEVICE_CLASS, "gpu")
            await self.harness.add(kinds.DEVICE_CLASS, device_class("gpu", self.driver))
        if "fabric" in self.themes:
            await self.harness.add(kinds.DEVICE_CLASS, device_class(CHANNEL_CLASS, CHANNELS))
        if "volumes" in self.themes:
            for name in STORAGE:
                await self.add_storage_class(name)
            for _ in range(3):
                await self.add_volume()
            for name in "ab":
                await self.add_data(f"data-{name}")

    async def furnish_namespace(self):
        await self.harness.add(kinds.NAMESPACE, {"metadata": {"name": SPACE, "labels": {"team": "a"}}})
        for size in SIZES:
            await self.harness.add(kinds.RESOURCE_CLAIM_TEMPLATE, template(f"t{size}", size))
        if "fabric" in self.themes:
            request = {"name": "channel", "exactly": {"deviceClassName": CHANNEL_CLASS}}
            body = {"metadata": {"name": "channel", "namespace": SPACE}}
            await self.harness.add(
                kinds.RESOURCE_CLAIM_TEMPLATE, body | {"spec": {"spec": {"devices": {"requests": [request]}}}}
            )
        if "quotas" in self.themes:
            await self.set_quota()

    async def themed_node_comes(self, name):
        if "fabric" in self.themes:
            await self.harness.patch_node(name, {"metadata": {"labels": {names.NVLINK_CLIQUE: "fabric.1"}}})
            with suppress(AlreadyExists):
                await self.harness.add(kinds.RESOURCE_SLICE, channel_slice(name))

    async def come_back(self):
        """Whatever went and is needed by everybody."""
        with suppress(AlreadyExists):
            await self.harness.add(kinds.DEVICE_CLASS, device_class("gpu", self.driver))
        if "volumes" in self.themes:
            for name in STORAGE:
                with suppress(AlreadyExists):
                    await self.add_storage_class(name)

    def themed_pod(self, spec):
        """Change what a new pod asks for."""
        if "volumes" in self.themes and self.random.random() < 0.4:
            wanted = self.random.sample("abc", self.random.choice([1, 1, 2]))
            spec["volumes"] = [
                {"name": each, "persistentVolumeClaim": {"claimName": f"data-{each}"}} for each in wanted
            ]
        if "names" in self.themes and "affinity" in spec and self.random.random() < 0.5:
            for terms in spec["affinity"].values():
                for term in (each.get("podAffinityTerm", each) for several in terms.values() for each in several):
                    term["namespaceSelector"] = {"matchLabels": {"team": self.random.choice("ab")}}

    # --- quotas ---------------------------------------------------------------------------------------------------------

    quota_since = 0.0
    ceiling = None
    """MiB that may be used: the limit, or what was used when it was lowered and has not been given back since."""

    async def set_quota(self):
        """Another limit, by another key, or none; now and then a new object of the same name."""
        table = self.all(kinds.RESOURCE_QUOTA)
        if table and self.random.random() < 0.4:
            await self.cluster.delete(kinds.RESOURCE_QUOTA, "cards", namespace=SPACE)
            table = []
            await self.harness.sleep(self.random.choice([0.0, 0.0, 1.0]))
        hard = {
            GPUMEM: str(1024 * self.random.choice([4, 8, 16, 24, 40, 80])),
            "limits.nvidia.com/gpu": str(self.random.choice([1, 2, 3, 6])),
        }
        hard = dict(self.random.sample(sorted(hard.items()), self.random.choice([1, 1, 2])))
        if self.random.random() < 0.15:
            hard = {"pods": "100"}
        if table:
            patch = {"spec": {"hard": {GPUMEM: None, "limits.nvidia.com/gpu": None, "pods": None} | hard}}
            await self.cluster.patch(kinds.RESOURCE_QUOTA, "cards", patch, namespace=SPACE)
        else:
            body = {"metadata": {"name": "cards", "namespace": SPACE}, "spec": {"hard": hard}}
            await self.harness.add(kinds.RESOURCE_QUOTA, body)
        self.quota_since, self.ceiling = self.harness.clock.monotonic(), None

    def check_quota(self):
        """Since the limit is known everywhere no more is used than it allows."""
        found = [each.spec.hard[GPUMEM] for each in self.all(kinds.RESOURCE_QUOTA) if GPUMEM in each.spec.hard]
        if not found or self.harness.clock.monotonic() < self.quota_since + SLOW:
            return
        [limit] = (Quantity.parse(str(text)).value() for text in found)
        used = sum(
            Quantity.parse(str(result.consumed_capacity["memory"])).value() // MIB
            for held in self.all(kinds.RESOURCE_CLAIM)
            if held.status.allocation
            for result in held.status.allocation.devices.results
            if result.driver == VENDOR
        )
        self.ceiling = max(limit, used if self.ceiling is None else min(used, self.ceiling))
        assert used <= self.ceiling, f"{used} MiB are used; the quota allows {limit}"

    # --- volumes ----------------------------------------------------------------------------------------------------------

    async def add_storage_class(self, name):
        provisioner, mode = STORAGE[name]
        body = {"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode}
        await self.harness.add(kinds.STORAGE_CLASS, body)

    async def add_volume(self):
        self.number += 1
        nodes = self.random.sample(NODES, self.random.choice([1, 1, 2]))
        body = volume(f"pv{self.number}", self.random.choice(["now", "local"]), *nodes)
        await self.harness.add(kinds.PERSISTENT_VOLUME, body)
        await self.bind_at_once()

    async def add_data(self, name=""):
        """A claim that pods name already, or will."""
        name = name or f"data-{self.random.choice('abc')}"
        modes = [self.random.choice(["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"])]
        spec = {"accessModes": modes, "storageClassName": self.random.choice(sorted(STORAGE))}
        spec["resources"] = {"requests": {"storage": "1Gi"}}
        await self.harness.add(
            kinds.PERSISTENT_VOLUME_CLAIM, {"metadata": {"name": name, "namespace": SPACE}, "spec": spec}
        )
        await self.bind_at_once()

    async def data_goes(self):
        """A claim or a volume; a claim may take its time, as while somebody uses it."""
        found = [*self.all(kinds.PERSISTENT_VOLUME_CLAIM), *self.all(kinds.PERSISTENT_VOLUME)]
        if not found:
            return
        gone = self.random.choice(found)
        kind = kinds.PERSISTENT_VOLUME_CLAIM if gone.metadata.namespace else kinds.PERSISTENT_VOLUME
        name, space = gone.metadata.name, gone.metadata.namespace
        if self.random.random() < 0.3:
            await self.cluster.patch(kind, name, {"metadata": {"finalizers": [LETTING_GO]}}, namespace=space)
            await self.cluster.delete(kind, name, namespace=space)
            await self.harness.sleep(self.random.choice([0.1, 3.0]))
            await self.cluster.patch(kind, name, {"metadata": {"finalizers": None}}, namespace=space)
        else:
            await self.cluster.delete(kind, name, namespace=space)
        self.wake_scheduler()

    async def storage_class_goes(self):
        name = self.random.choice(sorted(STORAGE))
        await self.cluster.delete(kinds.STORAGE_CLASS, name)
        if self.random.random() < 0.7:
            await self.harness.sleep(self.random.choice([0.0, 1.0]))
            await self.add_storage_class(name)
        self.wake_scheduler()

    def volume_problem(self, pod, node):
        """Why kube-scheduler would refuse the node for a pod's volumes; for the embedded one, which knows no volumes."""
        for key in data_of(pod):
            found = self.stored(kinds.PERSISTENT_VOLUME_CLAIM, key)
            if found is None or found.metadata.deletion_timestamp:
                return f'persistentvolumeclaim "{key}" not found'
            if found.spec.volume_name and found.metadata.annotations.get(names.BIND_COMPLETED):
                bound = self.stored(kinds.PERSISTENT_VOLUME, found.spec.volume_name, "")
                if bound is None:
                    return f'PersistentVolume "{found.spec.volume_name}" not found'
                if node not in hosts(bound):
                    return "node(s) didn't match PersistentVolume's node affinity"
                continue
            kind = self.stored(kinds.STORAGE_CLASS, found.spec.storage_class_name, "")
            if kind is None or kind.volume_binding_mode != "WaitForFirstConsumer":
                return "pod has unbound immediate PersistentVolumeClaims"
            if kind.provisioner == STORAGE["local"][0] and not self.free_volumes("local", node):
                return "node(s) didn't find available persistent volumes to bind"
            if "ReadWriteOncePod" in found.spec.access_modes and self.users(key):
                return "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode"
        return ""

    def users(self, key):
        return [pod for pod in self.all(kinds.POD) if is_bound(pod) and is_live(pod) and key in data_of(pod)]

    def free_volumes(self, storage_class, node=""):
        return [
            each
            for each in self.all(kinds.PERSISTENT_VOLUME)
            if each.spec.storage_class_name == storage_class
            and each.spec.claim_ref is None
            and not each.metadata.deletion_timestamp
            and (not node or node in hosts(each))
        ]

    async def bind_at_once(self):
        """What the volume controller does for claims of an Immediate class."""
        for found in self.all(kinds.PERSISTENT_VOLUME_CLAIM):
            free = self.free_volumes("now")
            if found.spec.storage_class_name == "now" and not found.spec.volume_name and free:
                await self.harness.sleep(self.random.choice([0.0, 0.1]))
                await self.bind_volume(found, self.random.choice(free).metadata.name)
        self.wake_scheduler()

    async def bind_for(self, pod, node):
        """What kube-scheduler does before it binds a pod whose volume claims wait for it."""
        for key in data_of(pod):
            found = self.stored(kinds.PERSISTENT_VOLUME_CLAIM, key)
            if found is None or found.spec.volume_name or found.spec.storage_class_name not in ("local", "made"):
                continue
            free = [each.metadata.name for each in self.free_volumes("local", node)]
            if found.spec.storage_class_name == "made":
                self.number += 1
                free = [f"pv{self.number}"]
                await self.harness.add(kinds.PERSISTENT_VOLUME, volume(free[0], "made", node))
            if free:
                await self.bind_volume(found, free[0])

    async def bind_volume(self, found, volume_name):
        name, uid = found.metadata.name, found.metadata.uid
        reference = {"claimRef": {"namespace": SPACE, "name": name, "uid": uid}}
        bound = {"metadata": {"annotations": {names.BIND_COMPLETED: "yes"}}, "spec": {"volumeName": volume_name}}
        with suppress(NotFound):
            await self.cluster.patch(kinds.PERSISTENT_VOLUME, volume_name, {"spec": reference})
            await self.cluster.patch(kinds.PERSISTENT_VOLUME_CLAIM, name, bound, namespace=SPACE)

    def wake_scheduler(self):
        """The embedded kube-scheduler does not watch volumes."""
        [worker] = [each for each in self.harness.plane._workers if each._name == "schedule"]
        worker.add_all(worker._sync.__self__._pending)

    # --- a fabric -----------------------------------------------------------------------------------------------------------

    async def add_domain(self):
        """A gang with a ComputeDomain: its members need nodes of one clique."""
        self.domain = True
        try:
            await self.add_gang()
        finally:
            self.domain = False

    domain = False

    async def rewire(self):
        """A node is in another clique, or in none; often one that a pod is about to run on."""
        name = self.a_node_that_is_waited_for()
        labels = {names.NVLINK_CLIQUE: self.random.choice(["fabric.1", "fabric.1", "fabric.2", None])}
        await self.harness.patch_node(name, {"metadata": {"labels": labels}})

    async def channel_goes(self):
        name = self.random.choice(NODES)
        await self.cluster.delete(kinds.RESOURCE_SLICE, channel_slice(name)["metadata"]["name"])
        if self.random.random() < 0.7:
            await self.harness.sleep(self.random.choice([0.0, 1.0]))
            await self.harness.add(kinds.RESOURCE_SLICE, channel_slice(name))

    def a_node_that_is_waited_for(self):
        waited = [pod.status.nominated_node_name for pod in self.all(kinds.POD) if is_pending(pod)]
        waited = [name for name in waited if name in NODES]
        return self.random.choice(waited) if waited and self.random.random() < 0.7 else self.random.choice(NODES)

    # --- names that go and come back ----------------------------------------------------------------------------------------

    async def class_goes(self):
        """It comes back at once, later, or in another form, which no device may have."""
        with suppress(NotFound):
            await self.cluster.delete(kinds.DEVICE_CLASS, "gpu")
        if self.random.random() < 0.8:
            await self.harness.sleep(self.random.choice([0.0, 0.0, 1.0, 5.0]))
            body = device_class("gpu", self.driver)
            if self.random.random() < 0.4:
                least = self.random.choice(["8Gi", "20Gi"])
                text = f'device.capacity["{self.driver}"].memory.compareTo(quantity("{least}")) >= 0'
                body["spec"]["selectors"].append({"cel": {"expression": text}})
            await self.harness.add(kinds.DEVICE_CLASS, body)

    async def namespace_goes(self):
        """With all that is in it; then it is made again, with pods of the same names."""
        bodies = [self.bodies[pod.metadata.name] for pod in await self.harness.pods()]
        inside = [
            kinds.POD, kinds.RESOURCE_CLAIM, kinds.RESOURCE_CLAIM_TEMPLATE, kinds.POD_GROUP, kinds.RESOURCE_QUOTA,
            kinds.PERSISTENT_VOLUME_CLAIM,
        ]  # fmt: skip
        self.random.shuffle(inside)
        for kind in inside:
            for found in self.all(kind):
                with suppress(NotFound):
                    await self.cluster.patch(
                        kind, found.metadata.name, {"metadata": {"finalizers": None}}, namespace=SPACE
                    )
                    await self.cluster.delete(kind, found.metadata.name, namespace=SPACE)
            await self.harness.sleep(self.random.choice([0.0, 0.0, 0.1]))
        await self.cluster.delete(kinds.NAMESPACE, SPACE)
        await self.harness.sleep(self.random.choice([0.0, 0.1, 5.0]))
        await self.furnish_namespace()
        for body in self.random.sample(bodies, min(3, len(bodies))):
            await self.create(body)

    async def relabel_namespace(self):
        labels = {"team": self.random.choice(["a", "b", None])}
        await self.cluster.patch(kinds.NAMESPACE, SPACE, {"metadata": {"labels": labels}})

    async def another_node(self):
        """Another machine gets the name, with other cards and room."""
        name = self.random.choice(NODES)
        victims = [(kinds.NODE, name), (kinds.RESOURCE_SLICE, self.slice_of(name)["metadata"]["name"])]
        self.random.shuffle(victims)
        for kind, gone in victims:
            with suppress(NotFound):
                await self.cluster.delete(kind, gone)
        await self.harness.sleep(self.random.choice([0.0, 0.0, 0.1, 2.0]))
        labels = {HOST: name, ZONE: self.random.choice("ab")}
        await self.harness.add_node(
            name,
            cpu=self.random.choice(["1", "4"]),
            labels=labels,
            driver=self.driver,
            cards=self.random.choice([1, 3]),
        )
        await self.themed_node_comes(name)

    # --- room that others make, and claims that others join -------------------------------------------------------------------

    async def nominate(self):
        """Somebody else says where a pod will run, or that it will not run there."""
        found = await self.a_pod(is_pending)
        node = self.random.choice([*NODES, None, "gone"])
        patch = {"status": {"nominatedNodeName": node}}
        await self.cluster.patch(kinds.POD, found.metadata.name, patch, namespace=SPACE, subresource="status")

    async def make_room(self):
        """As preemption does: a pod of less priority is ending, and the node is nominated for a new one."""
        victim = await self.a_pod(lambda pod: is_bound(pod) and is_live(pod))
        name = victim.metadata.name
        await self.cluster.patch(kinds.POD, name, {"metadata": {"finalizers": [LETTING_GO]}}, namespace=SPACE)
        self.number += 1
        body = self.new_pod(f"urgent{self.number}", gated=self.random.random() < 0.5)
        body["spec"]["priority"] = 2000
        await self.create(body)
        patch = {"status": {"nominatedNodeName": victim.spec.node_name}}
        orders = [
            lambda: self.cluster.delete(kinds.POD, name, namespace=SPACE),
            lambda: self.cluster.patch(
                kinds.POD, body["metadata"]["name"], patch, namespace=SPACE, subresource="status"
            ),
        ]
        self.random.shuffle(orders)
        for order in orders:
            await order()

    async def let_go(self):
        """Pods that are ending have ended."""
        for found in self.all(kinds.POD):
            if found.metadata.deletion_timestamp and found.metadata.finalizers:
                with suppress(NotFound):
                    patch = {"metadata": {"finalizers": None}}
                    await self.cluster.patch(kinds.POD, found.metadata.name, patch, namespace=SPACE)

    async def join_claim(self):
        """One more pod for a claim that others use, used, or wait for."""
        shared = [each for each in self.all(kinds.RESOURCE_CLAIM) if not each.metadata.owner_references]
        self.number += 1
        name = self.random.choice(shared).metadata.name if shared else f"c{self.number}"
        if not shared:
            await self.harness.add(kinds.RESOURCE_CLAIM, claim(name, self.random.choice(SIZES)))
        await self.create(self.new_pod(f"{name}-more{self.number}", claims=[name]))


def volume(name, storage_class, *nodes):
    where = [{"matchExpressions": [{"key": HOST, "operator": "In", "values": list(nodes)}]}]
    spec = {"capacity": {"storage": "10Gi"}, "storageClassName": storage_class}
    spec["accessModes"] = ["ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod"]
    spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": where}}
    return {"metadata": {"name": name}, "spec": spec, "status": {"phase": "Available"}}


def hosts(volume):
    [term] = volume.spec.node_affinity.required.node_selector_terms
    return term.match_expressions[0].values


def data_of(pod):
    """Keys of the volume claims of a pod."""
    return [f"{SPACE}/{each.persistent_volume_claim.claim_name}" for each in pod.spec.volumes]


def channel_slice(node):
    device = {"name": "channel-0", "attributes": {"type": {"string": "channel"}, "id": {"int": 0}}}
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": CHANNELS, "nodeName": node, "pool": pool, "devices": [device]}
    return {"metadata": {"name": f"{node}-channels"}, "spec": spec}
