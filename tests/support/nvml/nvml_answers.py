"""Runs in a process of its own, with the pretended NVML: `python nvml_answers.py FUNCTION ARGUMENTS SYS EVENTS`.

Each function below plays one story with the back end and returns what it saw, as JSON. Called by fake.py.
"""

import contextlib
import json
import os
import sys
import threading
from pathlib import Path

import msgspec

from hami_dra.api.containers import HostSettings, PartitionPlace, PartitionRefused
from hami_dra.api.hardware import Machine
from hami_dra.api.resource import ResourceClaim
from hami_dra.discovery.errors import DiscoveryError
from hami_dra.discovery.host import CDI_FOLDERS, MachineHost
from hami_dra.driver.prepare.assembly import transactions_of
from hami_dra.driver.prepare.batching import Prepare
from hami_dra.driver.prepare.cdi import kind
from hami_dra.driver.prepare.inventory import inventory_of
from hami_dra.driver.slices import machine_pools
from hami_dra.vendors.nvidia.containers import NvidiaContainers
from hami_dra.vendors.nvidia.monitor import NvmlSampler
from hami_dra.vendors.nvidia.nvml import NvmlBackend, NvmlPartitioner
from hami_dra.vendors.nvidia.nvml.unpartitioned import UnpartitionedCards
from hami_dra.vendors.nvidia.nvml.visits import use_driver_root
from hami_dra.vendors.nvidia.publish import NvidiaPublishing
from tests.support.settings import vendor_settings

NVIDIA = NvidiaContainers()


class RootedHost(MachineHost):
    """A machine whose / is a folder."""

    def __init__(self, root, **options):
        super().__init__(cdi_folders=[root / folder.relative_to("/") for folder in CDI_FOLDERS], **options)
        self._root = root

    def _place(self, path):
        return self._root / path.lstrip("/")


class Story:
    def __init__(self, sys_folder, events):
        self.sys = Path(sys_folder)
        self.events = Path(events)
        self.config = Path(os.environ["FAKE_NVML_CONFIG"])

    def backend(self, **options):
        return NvmlBackend(self.sys, **options)

    def happens(self, *lines):
        with self.events.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)

    # --- what tests ask for ---

    def discover(self, *options):
        backend = self.backend(**(options[0] if options else {}))
        found = findings(backend.discover())
        backend.close()
        backend.close()
        return found

    def discover_and_look(self):
        """Codes of faults by uuid, as discovery and the first look after it tell them."""
        backend = self.backend()
        cards = backend.discover().cards
        looked = health(backend.health())["faults"]
        return {"discovered": {card.uuid: [fault.code for fault in card.faults] for card in cards}, "looked": looked}

    def below_driver_root(self, root):
        """NVML is nowhere but below the driver root."""
        use_driver_root(Path(root))
        return self.discover()

    def discover_each(self, descriptions):
        """Of several machines, one after the other: the library reads its description whenever it is opened."""
        found = []
        for description in descriptions:
            self.config.write_text(description, encoding="utf-8")
            found.append(self.discover())
        return found

    def reloaded(self, description):
        """The machine fails as a whole and is another one when NVML is opened again."""
        backend = self.backend()
        backend.discover()
        try:
            backend.discover()
        except DiscoveryError as error:
            refusal = str(error)
        self.config.write_text(description, encoding="utf-8")
        between = health(backend.health())
        again = findings(backend.discover())
        return {"refusal": refusal, "between": between, "again": again, "after": health(backend.health())}

    def looked_at(self, *descriptions):
        """Health after each change of the machine that NVML itself does not notice: the library reads its description when it is opened."""
        backend = self.backend()
        backend.discover()
        reported = []
        for description in descriptions:
            self.config.write_text(description, encoding="utf-8")
            backend._start_again(backend._library)
            reported.append(health(backend.health())["faults"])
        return reported

    def starts(self, folder, *stories):
        """Drivers one after the other on one state folder, each on a machine of its own: what it finds, and its health after some events."""
        found = []
        for description, events in stories:
            self.config.write_text(description, encoding="utf-8")
            backend = NvmlBackend.at(Path(folder))
            cards = backend.discover().cards
            self.happens(*events)
            faults = health(backend.health())["faults"]
            backend.close()
            found.append(
                {"cards": [[card.uuid, card.name_number, card.index, card.present] for card in cards], "faults": faults}
            )
        return found

    def refusal(self, *options):
        """Of discovering, and of trying again."""
        backend = self.backend(**(options[0] if options else {}))
        said = []
        for _ in range(2):
            try:
                backend.discover()
            except DiscoveryError as error:
                said.append([type(error).__name__, str(error)])
        return said

    def health_after(self, lines, patience=0.0, options=None):
        """Health before the lines happen and after, and what a new discovery says."""
        backend = self.backend(**(options or {}))
        backend.discover()
        before = health(backend.health())
        self.happens(*lines)
        after = health(backend.health(patience))
        return {"before": before, "after": after, "again": findings(backend.discover())}

    def published(self):
        """Devices as they go into slices."""
        cards = self.backend().discover().cards
        [pool] = machine_pools(Machine(name="n1", instance_type="x", cpu=1, memory=1, cards=cards))
        return [device for content in pool.slices for device in content.devices]

    def prepared(self, root, claims, brings=False):
        """Prepare the claims on the node whose files are below `root`: the CDI files, what kubelet is told, and notes.

        `brings`: the driver brings libraries from its driver root, which is the whole node.
        """
        root_options = {"driver_root": "/", "cdi_hook": "/usr/bin/nvidia-cdi-hook"} if brings else {}
        settings = HostSettings(options=vendor_settings(imex_channels=True, **root_options))
        unpartitioned = UnpartitionedCards(Path(root) / "uncut.json")
        backend = self.backend(unpartitioned=unpartitioned)
        cards, published, driver, node = backend.discover().cards, NvidiaPublishing(), NVIDIA.driver, "n1"
        inventory = inventory_of(
            driver,
            node,
            published.devices(cards, vendor_settings()),
            NVIDIA.sites(cards),
            published.counter_sets(cards),
        )
        work = transactions_of(
            lambda: inventory,
            vendor=NVIDIA,
            host=RootedHost(
                Path(root), settings=settings, not_from=[kind(driver)], driver_root=Path(root) if brings else None
            ),
            partitioner=backend.partitioner(),
            state_folder=Path(root) / "state",
            cdi_folder=Path(root) / CDI_FOLDERS[1].relative_to("/"),
        )
        work.start()
        decoded = [msgspec.convert(claim, ResourceClaim, strict=False) for claim in claims]
        outcomes = work.run([Prepare({claim.metadata.uid: claim for claim in decoded})])[0]
        return [
            {"refused": outcome}
            if isinstance(outcome, str)
            else {
                "spec": outcome.spec,
                "ids": [each for answer in outcome.answers for each in answer.cdi_ids],
                "notes": outcome.notes,
            }
            for outcome in outcomes.values()
        ]

    def before_discovery(self):
        return health(self.backend().health())

    def missing_after(self, lines):
        backend = self.backend()
        backend.discover()
        self.happens(*lines)
        return findings(backend.discover())

    def patience(self, seconds):
        """Health that is asked for before the event happens."""
        backend = self.backend()
        backend.discover()
        threading.Timer(0.2, self.happens, ["event 0 8 79"]).start()
        return health(backend.health(seconds))

    def at_work(self, lines=(), options=None):
        """What the GPUs report at work, before the lines happen and after; a refusal in place of a sample is words."""
        import pynvml  # noqa: F401 (loaded before the first visit, whose limit is for the hardware: it takes longer than all else)

        backend = self.backend(**(options or {}))
        cards = backend.discover().cards
        sampler = NvmlSampler(backend)
        samples = [sample(sampler, cards)]
        self.happens(*lines)
        samples.append(sample(sampler, cards))
        backend.close()
        samples.append(sample(sampler, cards))
        return samples

    def at_work_each(self, descriptions):
        """As `at_work`, of several machines one after the other, when nothing happens."""
        found = []
        for description in descriptions:
            self.config.write_text(description, encoding="utf-8")
            found.append(self.at_work()[0])
        return found

    def partition(self, *steps):
        """Each step is [what, arguments...] of a partitioner; what it answered, or the error's type and words."""
        return self.partition_within(60, *steps)

    def partition_within(self, seconds, *steps):
        import pynvml

        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlInit()  # the pretended instances last as long as somebody has the library open
        node = Partitioned(self, seconds)
        answers = []
        for what, *arguments in steps:
            try:
                answers.append(getattr(node, what)(*arguments))
            except (PartitionRefused, DiscoveryError) as error:
                refusal = isinstance(error, PartitionRefused)
                answers.append(["PartitionRefused" if refusal else type(error).__name__, str(error)])
        return answers

    def mig_cycle(self, profile_id, start):
        """Makes an instance through pynvml, as the node driver will, and takes it down again."""
        import ctypes

        import pynvml

        backend = self.backend()
        states = [findings(backend.discover())]
        gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        place = pynvml.c_nvmlGpuInstancePlacement_t(start, 0)
        instance = pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, profile_id, ctypes.byref(place))
        profile = pynvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, 0, 0)
        compute = pynvml.nvmlGpuInstanceCreateComputeInstance(instance, profile.id)
        states.append(findings(backend.discover()))
        refused = []
        for attempt in (
            lambda: pynvml.nvmlDeviceCreateGpuInstanceWithPlacement(gpu, profile_id, ctypes.byref(place)),
            lambda: pynvml.nvmlGpuInstanceDestroy(instance),
            lambda: pynvml.nvmlDeviceSetMigMode(gpu, 0),
        ):
            try:
                attempt()
            except pynvml.NVMLError as error:
                refused.append(error.value)
        pynvml.nvmlComputeInstanceDestroy(compute)
        pynvml.nvmlGpuInstanceDestroy(instance)
        states.append(findings(backend.discover()))
        return {"states": states, "refused": refused}


class Partitioned:
    """A partitioner by itself, and from the first discovery beside a back end, which holds the GPUs."""

    def __init__(self, story, seconds):
        self.story = story
        self.backend = self._backend()
        self.partitioner = NvmlPartitioner(timeout=seconds, unpartitioned=self._unpartitioned())

    def _unpartitioned(self):
        return UnpartitionedCards(self.story.config.parent / "uncut.json")

    def _backend(self):
        return self.story.backend(unpartitioned=self._unpartitioned())

    def create(self, place):
        return msgspec.to_builtins(self.partitioner.create(PartitionPlace(**place)))

    def destroy(self, *arguments):
        return self.partitioner.destroy(*arguments)

    def existing(self, *arguments):
        return [msgspec.to_builtins(found) for found in self.partitioner.existing(*arguments)]

    def unpartition(self, uuid):
        return self.partitioner.unpartition(uuid)

    def repartition(self, uuid):
        return self.partitioner.repartition(uuid)

    def noted(self):
        return sorted(self.partitioner.unpartitioned_cards())

    def discover(self):
        """How its first card is cut."""
        self.partitioner = self.backend.partitioner()
        return findings(self.backend.discover())["cards"][0]["mig"]

    def faults(self):
        return list(health(self.backend.health())["faults"].values())

    def restart(self):
        self.backend.close()
        self.backend = self._backend()

    def mode(self):
        import pynvml

        return list(pynvml.nvmlDeviceGetMigMode(pynvml.nvmlDeviceGetHandleByIndex(0)))


def findings(found):
    """GPUs that are present, without what the memory of the back end adds; uuids of the others."""
    cards = [msgspec.to_builtins(card) for card in found.cards if card.present]
    for card in cards:
        del card["number"], card["provenance"], card["present"]
    absent = [card.uuid for card in found.cards if not card.present]
    return {"cards": cards, "problems": list(found.problems)} | ({"absent": absent} if absent else {})


def sample(sampler, cards):
    try:
        found = sampler.sample(cards)
    except DiscoveryError as error:
        return str(error)
    readings = [msgspec.to_builtins(found.readings[card.uuid]) for card in cards if card.uuid in found.readings]
    return {"readings": readings, "problems": list(found.problems)}


def health(found):
    faults = {uuid: [fault.code for fault in several] for uuid, several in found.faults.items()}
    return {"faults": faults, "problems": list(found.problems)}


def answer(name, arguments, sys_folder, events):
    """Print the answer of a function; its arguments are JSON."""
    print(json.dumps(getattr(Story(sys_folder, events), name)(*json.loads(arguments))))  # noqa: T201 (its answer)


if __name__ == "__main__":
    answer(*sys.argv[1:])
