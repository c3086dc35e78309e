"""What a real NVIDIA GPU tells hami-dra, and where that differs from the library that the tests
pretend with.

    .venv/bin/python hack/real_card.py [--output report.json]

Run it on a machine with a GPU and NVIDIA's driver; a C compiler is needed for the comparison. It
discovers the GPUs, builds and checks their slices, reads topology, MIG, health and what they report
at work, as the node driver does, and records how each function of NVML answered. Then it describes
the same GPUs to tests/support/nvml/fake_nvml.c, asks again in a process of its own, and prints each
difference: every line is a case for a test. Nothing on the machine is changed: no MIG mode, no
instance, no clock.

Exit status: 0 when the GPUs were read (with or without differences), 2 when there is nothing to
read.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar

import msgspec

ROOT: Final = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from hami_dra.api.hardware import Machine  # noqa: E402 (started as a script too)
from hami_dra.discovery.errors import DiscoveryError, ToolMissing  # noqa: E402
from hami_dra.driver.slices import machine_pools, slice_bodies  # noqa: E402
from hami_dra.topology.islands import islands  # noqa: E402
from hami_dra.vendors.nvidia.monitor import NvmlSampler  # noqa: E402
from hami_dra.vendors.nvidia.nvml import NvmlBackend  # noqa: E402
from hami_dra.vendors.nvidia.nvml.calls import NvmlFailed  # noqa: E402
from hami_dra.vendors.nvidia.nvml.library import Library  # noqa: E402
from hami_dra.vendors.nvidia.nvml.visits import open_library  # noqa: E402
from tests.support.nvml.fake import FakeNvml  # noqa: E402
from tests.support.slice_limits import check_slice  # noqa: E402

T = TypeVar("T")

Json = dict[str, Any]
NODE: Final = "this-node"
MIB: Final = 1 << 20
_MEASURED: Final = (
    "memory_used",
    "utilization",
    "memory_utilization",
    "temperature",
    "memory_temperature",
    "power",
    "fan",
)
"""Of a reading: these move from one moment to the next, so only whether they are told is compared."""
_OF_THE_MACHINE: Final = ("pcie_root", "numa_node")
"""Of a record: read from /sys, which is the same for both."""
_NOT_DESCRIBED: Final = ("brand", "architecture", "faults", "fabric", "distances")
"""Of a record: not described to the pretended library, so a difference says nothing."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="write everything that was read, and the differences, as JSON")
    parser.add_argument("--only-read", action="store_true", help="print what is read as JSON, and compare nothing")
    chosen = parser.parse_args(arguments)
    try:
        real = json.loads(json.dumps(read()))  # in the same form as what the other process tells
    except DiscoveryError as error:
        print(f"no GPU was read: {error}", file=sys.stderr)
        return 2
    if chosen.only_read:
        print(json.dumps(real))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        pretended = ask_pretended(FakeNvml(Path(folder), description(real)))
    found = list(differences(real, pretended))
    if chosen.output:
        chosen.output.write_text(json.dumps({"real": real, "pretended": pretended, "differences": found}, indent=2))
    print("\n".join([*summary(real), "", *(found or ["no difference to the pretended library"])]))
    return 0


def read() -> Json:
    """Return all that NVML and /sys tell, as the node driver reads it. Raises DiscoveryError."""
    backend = NvmlBackend(open_library=opened)
    try:
        found = backend.discover()
        if not found.cards:
            raise ToolMissing("NVML knows no GPU")
        health = backend.health()
        sample = NvmlSampler(backend).sample(found.cards)
    finally:
        backend.close()
    machine = Machine(name=NODE, instance_type="", cpu=1, memory=1, cards=found.cards)
    bodies = list(slice_bodies(machine_pools(machine)))
    return {
        "cards": msgspec.to_builtins(found.cards, str_keys=True),
        "islands": [list(group) for group in islands({card.index: card.links for card in found.cards})],
        "health": {uuid: [fault.code for fault in faults] for uuid, faults in health.faults.items()},
        "readings": {uuid: msgspec.to_builtins(reading) for uuid, reading in sample.readings.items()},
        "problems": [*found.problems, *health.problems, *sample.problems],
        "devices": [device["name"] for body in bodies for device in body["spec"].get("devices", ())],
        "violations": [str(each) for body in bodies for each in check_slice(body)],
        "calls": {function: sorted(answers) for function, answers in sorted(Recorded.answers.items())},
    }


class Recorded(Library):
    """NVML that notes of each function how it answered: `answered`, or the error's number."""

    answers: ClassVar[dict[str, set[str]]] = {}

    def _guarded(self, what: str, work: Callable[[], T]) -> T:
        seen = self.answers.setdefault(what, set())
        try:
            result = super()._guarded(what, work)
        except NvmlFailed as failed:
            seen.add(f"error {failed.code}")
            raise
        seen.add("answered")
        return result


def opened() -> Library:
    open_library()  # finds NVML, or says where it was looked for
    return Recorded()


def description(real: Json) -> str:
    """Return the same GPUs in the words of fake_nvml.c."""
    return "\n".join([*_of_driver(real["cards"][0]), *_of_cards(real), *_of_links(real["cards"]), ""])


def _of_driver(card: Json) -> Iterator[str]:
    major, _, minor = (card["runtime_version"] or "12.4").partition(".")
    yield f"driver {card['driver_version']}"
    yield f"cuda {int(major) * 1000 + int(minor or 0) * 10}"


def _of_cards(real: Json) -> Iterator[str]:
    for number, card in enumerate(real["cards"]):
        domain, _, rest = card["pci_bus_id"].partition(":")
        words = {
            "uuid": card["uuid"],
            "name": f'"{card["product"]}"',
            "memory": card["memory"] // MIB,
            "bus": f"{int(domain, 16):08X}:{rest.upper()}",
            "minor": card["minor"],
            "serial": card["serial"] or None,
            "cc": card["compute_capability"] or None,
            "numa": card["numa_node"],
            "mig": None if card["mig"] is None else int(card["mig"]["enabled"]),
        }
        yield "gpu " + " ".join(f"{name}={value}" for name, value in words.items() if value is not None)
        yield from _at_work(number, real["readings"].get(card["uuid"], {}))
        yield from _of_mig(number, card["mig"] or {})


def _at_work(number: int, reading: Mapping[str, Any]) -> Iterator[str]:
    words = {
        "used": None if reading.get("memory_used") is None else reading["memory_used"] // MIB,
        "busy": reading.get("utilization"),
        "membusy": reading.get("memory_utilization"),
        "temp": reading.get("temperature"),
        "memtemp": reading.get("memory_temperature"),
        "power": None if reading.get("power") is None else reading["power"] * 1000,
        "fan": reading.get("fan"),
        "corrected": reading.get("ecc_corrected"),
        "uncorrected": reading.get("ecc_uncorrected"),
    }
    known = " ".join(f"{name}={int(value)}" for name, value in words.items() if value is not None)
    if known:
        yield f"work {number} {known}"


def _of_mig(number: int, mig: Mapping[str, Any]) -> Iterator[str]:
    for place, profile in enumerate(mig.get("profiles", ())):
        starts = ",".join(str(each["start"]) for each in profile["placements"])
        size = profile["placements"][0]["size"] if profile["placements"] else 1
        yield (
            f'profile {number} {place} id={profile["id"]} name="MIG {profile["name"]}" slices={profile["slices"]} '
            f"count={profile['instances']} memory={profile['memory'] // MIB}"
            + (f" at={starts} size={size}" if starts else "")
        )
    for instance in mig.get("instances", ()):
        compute = instance["compute_instance_id"]
        yield (
            f"instance {number} id={instance['id']} profile={instance['profile_id']} start={instance['placement']['start']} "
            f"size={instance['placement']['size']}"
            + ("" if compute is None else f" ci={compute} uuid={instance['uuid']}")
        )


def _of_links(cards: list[Json]) -> Iterator[str]:
    """Lanes between GPUs, each way as that GPU tells it."""
    position = {card["index"]: number for number, card in enumerate(cards)}
    for card in cards:
        first = 0
        for peer, lanes in sorted((int(peer), lanes) for peer, lanes in card["links"].items()):
            for lane in range(first, first + lanes):
                yield f"lane {position[card['index']]} {lane} gpu {position[peer]}"
            first += lanes


def ask_pretended(fake: FakeNvml) -> Json:
    """Return what the pretended library tells, asked in a process of its own: NVML is loaded once in a process."""
    command = [sys.executable, __file__, "--only-read"]
    done = subprocess.run(command, env=fake.environment(), capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise SystemExit(f"the pretended library could not be asked: {done.stderr}")
    answer: Json = json.loads(done.stdout)
    return answer


def differences(real: Json, pretended: Json) -> Iterator[str]:
    """Yield what differs, one sentence each."""
    others = {card["uuid"]: card for card in pretended["cards"]}
    for card in real["cards"]:
        other = others.get(card["uuid"], {})
        for field in card.keys() - {*_OF_THE_MACHINE, *_NOT_DESCRIBED}:
            if card[field] != other.get(field):
                yield f"{card['uuid']}: {field}: the GPU {card[field]!r}, pretended {other.get(field)!r}"
        yield from _reading_differences(card["uuid"], real["readings"], pretended["readings"])
    for part in ("islands", "health", "devices", "violations"):
        if real[part] != pretended[part]:
            yield f"{part}: the GPU {real[part]!r}, pretended {pretended[part]!r}"
    yield from (
        f"a problem that only the GPU has: {text}" for text in real["problems"] if text not in pretended["problems"]
    )
    for function in sorted(real["calls"].keys() | pretended["calls"].keys()):
        one, other = (each["calls"].get(function, ["not called"]) for each in (real, pretended))
        if one != other:
            yield f"{function}: the GPU {', '.join(one)}; pretended {', '.join(other)}"


def _reading_differences(uuid: str, real: Json, pretended: Json) -> Iterator[str]:
    one, other = real.get(uuid, {}), pretended.get(uuid, {})
    for field in one:
        told, also = one[field], other.get(field)
        if field in _MEASURED:
            told, also = told is not None, also is not None
        if told != also:
            yield f"{uuid}: reading {field}: the GPU {one[field]!r}, pretended {other.get(field)!r}"


def summary(real: Json) -> Iterator[str]:
    """Yield what was seen, for docs/design/nvidia.md."""
    first = real["cards"][0]
    yield f"driver {first['driver_version']}, CUDA {first['runtime_version']}"
    for card in real["cards"]:
        mig = "without MIG" if card["mig"] is None else f"MIG {'on' if card['mig']['enabled'] else 'off'}"
        faults = ", ".join(real["health"].get(card["uuid"], ())) or "healthy"
        reading = real["readings"].get(card["uuid"], {})
        told = sorted(name for name, value in reading.items() if value not in {None, ""} and name != "uuid")
        yield f"GPU {card['index']}: {card['product']}, {card['memory'] // MIB} MiB, {card['pci_bus_id']}, {mig}, {faults}"
        yield f"  links {card['links']}; tells {', '.join(told)}"
    yield f"devices: {', '.join(real['devices'])}"
    yield f"islands: {real['islands']}; violations of limits: {real['violations'] or 'none'}"
    yield from (f"problem: {text}" for text in real["problems"])


if __name__ == "__main__":
    sys.exit(main())
