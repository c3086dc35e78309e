"""A node on which claims are prepared: cards, folders below one root, a partitioner in memory; and objects in JSON."""

import errno

import msgspec

from hami_dra.api.resource import ResourceClaim
from hami_dra.discovery.errors import ToolFailed
from hami_dra.driver.prepare.assembly import CHECKPOINT, transactions_of
from hami_dra.driver.prepare.batching import Prepare, Unprepare
from hami_dra.driver.prepare.files import Files
from hami_dra.driver.prepare.inventory import inventory_of
from hami_dra.driver.prepare.pods import read_pod
from hami_dra.driver.prepare.records import GrantedDevice, Record
from hami_dra.vendors.nvidia.containers import NvidiaContainers
from hami_dra.vendors.nvidia.options import Keeping
from hami_dra.vendors.nvidia.publish import NvidiaPublishing
from hami_dra.vendors.nvidia.records import GpuRecord, MigState
from hami_dra.vendors.nvidia.simulated_partitions import SimulatedPartitioner
from tests.support.containers import PretendHost, kernel_with_mig
from tests.support.kubelet_order import environments
from tests.support.settings import vendor_settings

DRIVER = "nvidia.hami.io"
NODE = "n1"
GIB = 1 << 30


class Killed(BaseException):
    """The process is gone: no handler of ours runs."""


class RootedFiles(Files):
    """Everything lies below one root; each step may be made the last one."""

    def __init__(self, root):
        super().__init__(own_label=root / "own-label")
        self.root = root
        self.steps = []
        self.fail_at = None
        """Number of the step that fails."""
        self.failure = None
        """Called with the path; raises."""

    def _step(self, name, path):
        self.steps.append((name, str(path)))
        if self.fail_at is not None and len(self.steps) - 1 == self.fail_at:
            self.failure(path)

    def _below(self, path):
        return path if path.is_relative_to(self.root) else self.root / path.relative_to("/")

    def read(self, path):
        self._step("read", path)
        return super().read(path)

    def names(self, folder):
        self._step("names", folder)
        return super().names(folder)

    def write_temporary(self, path, content, mode):
        """Without waiting for the disk, which the tests of `Files` itself do."""
        self._step("open", path)
        path.write_bytes(content[: len(content) // 2])
        self._step("write", path)
        path.write_bytes(content)
        path.chmod(mode)

    def rename(self, source, target):
        self._step("rename", target)
        super().rename(source, target)

    def unlink(self, path):
        self._step("unlink", path)
        super().unlink(path)

    def sync_folder(self, folder):
        self._step("sync", folder)

    def make_folder(self, path, mode):
        self._step("mkdir", path)
        super().make_folder(self._below(path), mode)

    def touch(self, path):
        self._step("touch", path)
        super().touch(self._below(path))

    def label_for_containers(self, path):
        self._step("label", path)
        super().label_for_containers(self._below(path))

    def remove_folder(self, path):
        self._step("rmdir", path)
        super().remove_folder(self._below(path))


class SteppedPartitioner:
    """A partitioner whose calls are steps of the files, before and after."""

    def __init__(self, inner, files):
        self._inner = inner
        self._files = files

    def create(self, place):
        self._step("create", place.card_uuid)
        made = self._inner.create(place)
        self._step("created", place.card_uuid)
        return made

    def destroy(self, card_uuid, instance_id):
        self._step("destroy", card_uuid)
        self._inner.destroy(card_uuid, instance_id)
        self._step("destroyed", card_uuid)

    def existing(self, card_uuid):
        return self._inner.existing(card_uuid)

    def unpartition(self, card_uuid):
        self._step("uncut", card_uuid)
        self._inner.unpartition(card_uuid)
        self._step("is uncut", card_uuid)

    def repartition(self, card_uuid):
        self._step("recut", card_uuid)
        self._inner.repartition(card_uuid)
        self._step("is recut", card_uuid)

    def unpartitioned_cards(self):
        return self._inner.unpartitioned_cards()

    def _step(self, name, card_uuid):
        try:
            self._files._step(name, card_uuid)
        except OSError as error:
            raise ToolFailed(f"GPU {card_uuid}: NVML does not answer") from error


def kill(_path):
    raise Killed


def disk_full(path):
    raise OSError(errno.ENOSPC, "No space left on device", str(path))


def read_only(path):
    raise OSError(errno.EROFS, "Read-only file system", str(path))


def gpu(index, *, mig=False, memory=16 * GIB, product="Tesla T4"):
    return GpuRecord(
        vendor="nvidia",
        index=index,
        uuid=f"GPU-{index}",
        product="NVIDIA A100-SXM4-40GB" if mig else product,
        memory=40960 << 20 if mig else memory,
        mig=MigState(enabled=True, pending=True) if mig else None,
    )


class PreparedNode:
    """`cards`: two shared T4s and an A100 in MIG mode. `restart()` is a new process on the same host."""

    vendor = NvidiaContainers()

    def __init__(self, root, cards=None, sharing=None, installed=True, usage_cache=Keeping.HOST):
        self.root = root
        self.cards = [gpu(0), gpu(1), gpu(2, mig=True)] if cards is None else cards
        self.sharing = sharing or vendor_settings()
        self.partitioner = SimulatedPartitioner(self.cards)
        library = str(root / "usr")
        paths = [f"{library}/vgpu/{name}" for name in ("libvgpu.so", "ld.so.preload")] if installed else []
        nodes = [
            "/dev/nvidiactl",
            "/dev/nvidia-uvm",
            *(f"/dev/{name}{card.index}" for card in self.cards for name in ("nvidia", "gcu")),
        ]
        # on the host, so that there are folders to make and to remove
        self.host = PretendHost(
            *paths,
            *nodes,
            files=kernel_with_mig(len(self.cards)),
            library_folder=library,
            usage_cache=usage_cache,
        )
        self.cdi = root / "cdi"
        self.state = root / "state"
        self.inventory = self._inventory()
        self.restart(start=False)

    def _inventory(self):
        published = NvidiaPublishing()
        return inventory_of(
            DRIVER,
            NODE,
            published.devices(self.cards, self.sharing),
            NvidiaContainers().sites(self.cards),
            published.counter_sets(self.cards),
        )

    def restart(self, *, start=True):
        self.files = RootedFiles(self.root)
        self.work = self.make_work()
        return self.work.start() if start else []

    def make_work(self):
        return transactions_of(
            lambda: self.inventory,
            vendor=self.vendor,
            host=self.host,
            partitioner=SteppedPartitioner(self.partitioner, self.files),
            state_folder=self.state,
            cdi_folder=self.cdi,
            files=self.files,
        )

    def prepare(self, *claims, pods=()):
        return self.work.run([prepare_job(*claims, pods=pods)])[0]

    def unprepare(self, *claims):
        return self.work.run([Unprepare(tuple(claim.metadata.uid for claim in claims))])[0]

    @property
    def checkpoint(self):
        return self.state / CHECKPOINT

    def specs(self):
        return {path.name: msgspec.json.decode(path.read_bytes()) for path in sorted(self.cdi.glob("*.json"))}

    def instances(self):
        cut = [card.uuid for card in self.cards if card.mig is not None]
        return [found for uuid in cut for found in self.partitioner.existing(uuid)]

    def traces(self):
        """Everything that is left on the host of any claim."""
        views = self.root / "usr" / "vgpu" / "containers"
        folders = [path.name for path in views.iterdir()] if views.exists() else []
        cdi = [path.name for path in self.cdi.iterdir()] if self.cdi.exists() else []
        left = [path.name for path in self.state.iterdir() if path.name.endswith(".tmp")] if self.state.exists() else []
        return [
            *folders,
            *cdi,
            *left,
            *(found.uuid for found in self.instances()),
            *(f"{card} in one" for card in self.partitioner.unpartitioned_cards()),
        ]

    def seen(self, claims, pod, container, outcomes=None):
        """What containerd makes of what kubelet hands over, for every order of the claims: the environments."""
        records = outcomes or self.work.written
        answers = {claim.metadata.name: records[claim.metadata.uid].answers for claim in claims}
        return environments(pod, container, answers, self.specs())


def prepare_job(*claims, pods=()):
    return Prepare({claim.metadata.uid: claim for claim in claims}, tuple(pods))


def result(device, request="r", *, share_id="", pool=NODE, driver=DRIVER, admin=False, **consumed):
    found = {"request": request, "driver": driver, "pool": pool, "device": device}
    if share_id:
        found["shareID"] = share_id
    if consumed:
        found["consumedCapacity"] = consumed
    return found | ({"adminAccess": True} if admin else {})


def share(device, request="r", *, memory="4Gi", cores="30", share_id="", **more):
    return result(
        device, request, share_id=share_id or f"share-{request}", memory=memory, cores=cores, shares="1", **more
    )


def claim_json(name, *results, config=(), pods=(), uid=None, owner="pod", **metadata):
    """`owner`: name of the pod that it was generated for; empty: a claim that users made, and that any pod may join."""
    if owner:
        reference = {"apiVersion": "v1", "kind": "Pod", "name": owner, "uid": f"uid-{owner}", "controller": True}
        metadata = {"ownerReferences": [reference], **metadata}
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": uid or f"uid-{name}",
            "resourceVersion": "1",
            **metadata,
        },
        "spec": {"devices": {}},
        "status": {
            "allocation": {"devices": {"results": list(results), "config": list(config)}},
            "reservedFor": [
                {"resource": "pods", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]} for pod in pods
            ],
        },
    }


def unprepared(name, *requests, joinable=False):
    """The record of a claim that is about to be prepared, with one device for each request."""
    held = tuple(
        GrantedDevice(request=each, pool=NODE, device=f"{each}-device", card=f"GPU-{each}") for each in requests
    )
    owner = "" if joinable else "uid-pod"
    return Record("default", name, f"uid-{name}", "", "preparing", held, owner)


def claim(name, *results, **more):
    return msgspec.json.decode(
        msgspec.json.encode(claim_json(name, *results, **more)), type=ResourceClaim, strict=False
    )


def pod_json(name="pod", containers=None, *, claims=("c",), init=None, **status):
    """`containers`: name → references, each `claim` or `claim/request`, by the name in the pod, which is the claim's."""

    def container(own, references):
        entries = [dict(zip(("name", "request"), reference.split("/"), strict=False)) for reference in references]
        return {"name": own, "resources": {"claims": entries}}

    given = {"main": claims} if containers is None else containers
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {
            "nodeName": NODE,
            "resourceClaims": [{"name": each, "resourceClaimName": each} for each in claims],
            "containers": [container(own, references) for own, references in given.items()],
            "initContainers": [container(own, references) for own, references in (init or {}).items()],
        },
        "status": status,
    }


def pod(*arguments, **more):
    return read_pod(pod_json(*arguments, **more))


def env_of(spec_device):
    return dict(entry.split("=", 1) for entry in spec_device["containerEdits"].get("env", ()))


def only(specs):
    (document,) = specs.values()
    (device,) = document["devices"]
    return device
