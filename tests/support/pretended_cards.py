"""Machines whose cards come and go, and vendors' tools that tell of them: well, badly, or not at all. Without processes.

A `Pretended` vendor writes what its tool prints for some of its cards, in the layouts of tests/fixtures/discovery; the real parsers
read it. What one listing of the tool does wrong is drawn for each run of it.
"""

import random
import re
from dataclasses import dataclass, field

from hami_dra.discovery.errors import ToolFailed
from hami_dra.vendors.ascend import discovery as ascend
from hami_dra.vendors.enflame import discovery as enflame
from hami_dra.vendors.kunlunxin import discovery as kunlunxin
from hami_dra.vendors.metax import discovery as metax
from hami_dra.vendors.neuron import discovery as neuron
from hami_dra.vendors.nvidia.nvml import NvmlBackend
from hami_dra.vendors.nvidia.nvml.calls import NvmlFailed
from tests.support.tools import FIXTURES

_AMOUNT = re.compile(r"\b(3310 / 65536|65536 MiB|98304 MiB|98304|42976\s?MiB|34359738368|32 GB)")
COUNT = 4
"""Cards of each machine."""


@dataclass
class Run:
    """One run of the tool."""

    at: float
    arguments: tuple[str, ...]
    text: str | None
    """None: it failed, or hung until it was killed."""


@dataclass
class Machine:
    """`present`: numbers of the cards that are there. `rough`: how likely a run goes wrong."""

    vendor: "Pretended"
    seed: int
    present: list[int] = field(default_factory=lambda: list(range(COUNT)))
    rough: float = 0.0
    stuck: tuple[str, int, int] | None = None
    """(mishap, listing, card): what goes wrong in the same way every time."""
    now: object = lambda: 0.0
    renumbers = False
    """Whether cards have other numbers whenever they are looked at."""
    runs: list[Run] = field(default_factory=list)

    def __post_init__(self):
        self._random = random.Random(self.seed)
        self._listings = []

    def run(self, *arguments):
        """Stands in for `Tool.run`."""
        text = self._text(arguments)
        self.runs.append(Run(self.now(), arguments, text))
        if text is None:
            raise ToolFailed(f"{self.vendor.name} {' '.join(arguments)} ended with exit code 1; it said: nothing")
        return text

    def _text(self, arguments):
        mishap = self._random.choice(("fails", "less", "order", "garbage", "cut", "lines"))
        if self._random.random() >= self.rough:
            mishap = ""
        stuck, broken = self._stuck(arguments)
        if "fails" in (mishap, stuck):
            return None
        text = self.vendor.listing(arguments, self._listed(mishap, stuck, broken))
        if stuck == "unreadable" and text:
            text = self._without_memory(text, broken)
        if stuck == "cut" and text:
            text = text[: self._cut_at(text, broken)]
        return self._spoilt(text, mishap) if text else text

    def _stuck(self, arguments):
        """What goes wrong with this listing every time, and with which card."""
        if arguments not in self._listings:
            self._listings.append(arguments)
        stuck, listing, broken = self.stuck or ("", 0, 0)
        return (stuck, broken) if self._listings.index(arguments) == listing else ("", 0)

    def _listed(self, mishap, stuck, broken):
        cards = list(self.present)
        if mishap == "less" and cards:
            cards.remove(self._random.choice(cards))
        if mishap == "order":
            self._random.shuffle(cards)
        if stuck == "less" and broken in cards:
            cards.remove(broken)
        if stuck == "gap":
            return [None if card == broken else card for card in cards]
        return cards[broken:] + cards[:broken] if stuck == "order" else cards

    def _spoilt(self, text, mishap):
        if mishap == "garbage":
            word = self._random.choice(list(re.finditer(r"[\w-]{3,}", text)))
            return f"{text[: word.start()]}x{self._random.randrange(1 << 40)}{text[word.end() :]}"
        if mishap == "cut":
            return text[: self._random.randrange(len(text))]
        if mishap == "lines":
            lines = text.splitlines(keepends=True)
            at = self._random.randrange(len(lines))
            return "".join(lines[:at] + lines[at + self._random.randrange(1, 4) :])
        return text

    def _without_memory(self, text, card):
        """Nothing in place of the amount that follows the name of the card."""
        places = [place for mark in self.vendor.marks(card) if (place := text.find(mark)) >= 0]
        found = _AMOUNT.search(text, max(places)) if places else None
        return f"{text[: found.start()]}N/A{text[found.end() :]}" if found else text

    def _cut_at(self, text, card):
        """Where the listing breaks off every time: somewhere before all of the card is written."""
        places = [place for mark in self.vendor.marks(card) if (place := text.find(mark)) >= 0]
        return random.Random(self.seed).randint(min(places) // 2, max(places) + 3) if places else len(text)

    def mentioned(self, card, runs):
        """Whether one of them named the card, by whatever names a card."""
        marks = self.vendor.marks(card)
        return any(run.text is not None and any(mark in run.text for mark in marks) for run in runs)

    def unanswered(self, runs):
        """Whether a listing that shows the cards, when all is well, failed and was not asked again at once."""
        last = {(run.at, run.arguments): run.text for run in runs if run.arguments in self.vendor.shows}
        return None in last.values()


class Pretended:
    name: str
    published: str
    """`Card.vendor`."""
    shows: tuple[tuple[str, ...], ...]
    """Arguments of the listings that are read at every look, and show each card."""

    def listing(self, arguments, cards):
        """What the tool prints of these cards, in this order; None where it knows no such option. A None among the cards: one that
        this listing leaves out without giving its number to the next.
        """
        raise NotImplementedError

    def marks(self, card):
        raise NotImplementedError

    def backend(self, folder, machine, sys):
        raise NotImplementedError


def _address(card):
    return f"0000:{0x1A + card:02x}:00.0"


def _numbered(cards):
    """(position, card) of each that is listed, and these cards."""
    pairs = [(number, card) for number, card in enumerate(cards) if card is not None]
    return pairs, [card for _, card in pairs]


class Metax(Pretended):
    """Numbers are positions."""

    name, published = "mx-smi", "metax"
    shows = (("-L",), ())

    def marks(self, card):
        return f"GPU-{card}b1c0d2e", _address(card)

    def backend(self, folder, machine, sys):
        return metax.backend(folder, machine, sys)

    def listing(self, arguments, cards):
        numbered, cards = _numbered(cards)
        if arguments == ("-L",):
            lines = [
                f"GPU#{number}    MXC500      {_address(card)}   Available (UUID: GPU-{card}b1c0d2e-0f3a)\n"
                for number, card in numbered
            ]
            return f"Attached GPUs     : {len(cards)}\n" + "".join(lines) + "End of Log\n"
        if arguments == ():
            head = (FIXTURES / "metax/table.v2.3.txt").read_text().partition("| 0  ")[0]
            rule = "+------------------+-----------------+---------------------+----------------------+\n"
            rows = [
                f"| {number}     MetaX C500 | {number}           Off | {_address(card)}        | 0%          Disabled |\n"
                f"| 40W / 350W       | 30C    P0       | 800/65536 MiB       | Available            |\n{rule}"
                for number, card in numbered
            ]
            return head + "".join(rows)
        if arguments[0] == "dmon":
            rows = [f"{number}, 0, 0, 64, {_address(card)}\n" for number, card in numbered]
            return "dev, die, vram, total, bdfid\nidx, idx, %, GB,\n" + "".join(rows)
        names = [f"GPU{number}" for number, _ in numbered]
        rows = [" ".join([name, *("X" if name == peer else "MX" for peer in names)]) for name in names]
        return "\n".join([" ".join(["     ", *names]), *rows, ""])


class Enflame(Pretended):
    """Numbers are positions. No links, as with most versions."""

    name, published = "efsmi", "enflame"
    shows = (("-q",), ())

    def marks(self, card):
        return f"TR6Y4700010{card}", f"A0A16500000{card}", f"{0x17 + card:02x}:00.0"

    def backend(self, folder, machine, sys):
        return enflame.backend(folder, machine, sys)

    def listing(self, arguments, cards):
        numbered, cards = _numbered(cards)
        if arguments == ("-q",):
            block = (FIXTURES / "enflame/query.txt").read_text().split("DEV ID 0")[1].split("DEV ID 1")[0]
            made = [
                f"DEV ID {number}"
                + block.replace("TR6Y47000100", f"TR6Y4700010{card}")
                .replace("A0A165000000", f"A0A16500000{card}")
                .replace("Bus                     : 17", f"Bus                     : {0x17 + card:02x}")
                for number, card in numbered
            ]
            return "".join(made)
        if arguments == ():
            text = (FIXTURES / "enflame/table.txt").read_text()
            head = text.partition("| 0   ")[0]
            rule = "+-----------------------------+-------------------+---------------------------+\n"
            rows = [
                f"| {number}      Enflame S60          | 31.5.3            | 00:{0x17 + card:02x}:00.0  Disable       |\n"
                f"| 30℃    LP0      N/A         | 42976MiB  Disable | 0%          A0A16500000{card} |\n{rule}"
                for number, card in numbered
            ]
            return head + "".join(rows)
        return None


class Kunlunxin(Pretended):
    """Numbers are minor numbers."""

    name, published = "xpu-smi", "kunlunxin"
    shows = (("-q", "-x"),)

    def marks(self, card):
        return f"GPU-{card}0c1d2e3", f"02K00A0000C000{card}Z", f"{0x1A + card:02X}:00.0"

    def backend(self, folder, machine, sys):
        return kunlunxin.backend(folder, machine, sys)

    def listing(self, arguments, cards):
        numbered, cards = _numbered(cards)

        def values(card):
            return {
                "Product Name": "P800 PCIe",
                "Product Brand": "KUNLUNXIN",
                "Serial Number": f"02K00A0000C000{card}Z",
                "XPU UUID": f"GPU-{card}0c1d2e3-f405",
                "Minor Number": str(card),
            }

        if arguments == ("-m",):
            rest = '36 0 0 0 86 1450 1450 1450 1450 1450 1450 2 96 90440 98304 0 1.0:2.6 "P800 PCIe" 0 0'
            return "".join(
                f"00000000:{0x1A + card:02X}:00.0 {number} {card} 02K00A0000C000{card}Z {rest}\n"
                for number, card in numbered
            )
        if arguments == ("-q",):
            blocks = [
                f"XPU 00000000:{0x1A + card:02X}:00.0\n"
                + "".join(f"    {key:<38}: {value}\n" for key, value in values(card).items())
                + "    Memory Usage\n        Total                             : 98304 MiB\n"
                for card in cards
            ]
            return f"Attached XPUs                             : {len(cards)}\n" + "".join(blocks)
        tags = {"XPU UUID": "uuid", "Serial Number": "serial"}
        blocks = [
            "<xpu>"
            + "".join(
                f"<{tags.get(key, key.lower().replace(' ', '_'))}>{value}</{tags.get(key, key.lower().replace(' ', '_'))}>\n"
                for key, value in values(card).items()
            )
            + f"<pci><pci_bus_id>00000000:{0x1A + card:02X}:00.0</pci_bus_id></pci>\n"
            + "<fb_memory_usage><total>98304 MiB</total></fb_memory_usage></xpu>\n"
            for card in cards
        ]
        return f"<xpu_smi_log>\n<attached_xpus>{len(cards)}</attached_xpus>\n{''.join(blocks)}</xpu_smi_log>\n"


class Neuron(Pretended):
    """Numbers are those of the kernel. Without its files: uuids are made of PCI addresses."""

    name, published = "neuron-ls", "neuron"
    shows = (("--json-output",),)

    def marks(self, card):
        return (_address(card),)

    def backend(self, folder, machine, sys):
        return neuron.backend(folder, machine, sys)

    def listing(self, arguments, cards):
        _, cards = _numbered(cards)
        if arguments == ("--json-output",):
            devices = [
                f'{{"neuron_device": {card}, "bdf": "{_address(card)}", "nc_count": 2, "memory_size": 34359738368,\n'
                '"connected_to": null, "numa_node": "0"}'
                for card in cards
            ]
            return "[\n" + ",\n".join(devices) + "\n]\n"
        head = (FIXTURES / "neuron/table.txt").read_text().partition("| 0 ")[0]
        rows = [f"| {card}      | 2      | 2       | 32 GB  |               | {_address(card)} |\n" for card in cards]
        return head + "".join(rows)


class Ascend(Pretended):
    """Numbers are those of the board's slot. The identity of a chip has a listing of its own, which is read once."""

    name, published = "npu-smi", "ascend"
    shows = (("info",),)

    def marks(self, card):
        return f"0000:{0x1A + card:02X}:00.0", f"A0{card}42100"

    def backend(self, folder, machine, sys):
        return ascend.backend(folder, machine, sys)

    def listing(self, arguments, cards):
        _, cards = _numbered(cards)
        folder = FIXTURES / "ascend"
        if arguments == ("info",):
            head, rest = (folder / "info.910b3.txt").read_text().split("| 0     910B3", 1)
            rule = rest.splitlines()[2]
            end = rest.partition("| NPU     Chip ")[2]
            rows = "".join(
                f"| {card}     910B3               | OK            | 90.5        38                0    / 0             |\n"
                f"| 0                         | 0000:{0x1A + card:02X}:00.0  | 0           0    / 0          3310 / 65536         |\n"
                f"{rule}\n"
                for card in cards
            )
            return f"{head}{rows}| NPU     Chip {end}"
        if arguments[:3] == ("info", "-t", "board"):
            card = int(arguments[4])
            text = (folder / "board.txt").read_text().replace("A0142100", f"A0{card}42100")
            return text.replace("0000:C1:00.0", f"0000:{0x1A + card:02X}:00.0") if card in cards else None
        names = [f"NPU{card}" for card in cards]
        rows = [" ".join([name, *("X" if name == peer else "HCCS" for peer in names), "0-23"]) for name in names]
        return "\n".join([" ".join([*names, "CPU Affinity"]), *rows, ""])


VENDORS = {vendor.published: vendor for vendor in (Metax(), Enflame(), Kunlunxin(), Neuron(), Ascend())}


# --- NVML ---


def nvml_uuid(card):
    return f"GPU-{card:08d}-aaaa-bbbb-cccc-000000000000"


class NvmlMachine:
    """GPUs behind `hami_dra.vendors.nvidia.nvml.library.Library`. `rough`: how likely a call fails.

    `stuck`: as of `Machine`, where one call about one GPU stands for the listing that goes wrong.
    """

    published = "nvidia"
    renumbers = True

    def __init__(self, seed):
        self.vendor = self
        self.present = list(range(COUNT))
        self.rough = 0.0
        self.stuck = None
        self._random = random.Random(seed)

    def backend(self, folder, _machine, sys):
        backend = NvmlBackend.at(folder)
        backend._sys = sys
        backend._open_library = lambda: _Nvml(self._random, self)
        backend.tells_events = False
        return backend


_CALLS = "nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetPciInfo"


class _Nvml:
    """One opened NVML; a GPU's handle is its number among all of the machine."""

    current = "nvmlPretend"

    def __init__(self, chance, machine):
        self._chance = chance
        self._machine = machine
        self._step("nvmlInit")
        self._order = list(machine.present)
        chance.shuffle(self._order)

    def _step(self, call):
        if self._chance.random() < self._machine.rough:
            raise NvmlFailed(call, 999, "Unknown Error")

    def _of(self, gpu, call):
        self._step(call)
        mishap, number, broken = self._machine.stuck or ("", 0, 0)
        stuck = "nvmlDeviceGetHandleByIndex" if mishap in ("less", "gap") else _CALLS[number]
        if mishap and (call, gpu) == (stuck, broken):
            raise NvmlFailed(call, 999, "Unknown Error")
        if gpu not in self._machine.present:
            raise NvmlFailed(call, 15, "GPU is lost")
        return gpu

    def count(self):
        self._step("nvmlDeviceGetCount")
        return len(self._order)

    def gpu(self, index):
        return self._of(self._order[index], "nvmlDeviceGetHandleByIndex")

    def gpu_of(self, uuid):
        self._step("nvmlDeviceGetHandleByUUID")
        for card in self._machine.present:
            if nvml_uuid(card) == uuid:
                return card
        raise NvmlFailed("nvmlDeviceGetHandleByUUID", 6, "Not Found")

    def uuid(self, gpu):
        return nvml_uuid(self._of(gpu, "nvmlDeviceGetUUID"))

    def name(self, gpu):
        return "Tesla T4" if self._of(gpu, "nvmlDeviceGetName") >= 0 else ""

    def memory(self, gpu):
        return (16 << 30) + 0 * self._of(gpu, "nvmlDeviceGetMemoryInfo")

    def bus_id(self, gpu):
        return f"00000000:{0x1A + self._of(gpu, 'nvmlDeviceGetPciInfo'):02X}:00.0"

    def wait(self, _events, _milliseconds):
        self._step("nvmlEventSetWait")

    def event_set(self):
        self._step("nvmlEventSetCreate")
        return 1

    def close(self):
        return None

    def free_event_set(self, _events):
        return None

    def __getattr__(self, name):
        """Whatever else is asked is not supported."""

        def refuse(*_):
            raise NvmlFailed(name, 3, "Not Supported")

        return refuse


def pretended_machine(vendor, seed):
    """A machine with cards of this vendor, or None."""
    if vendor == "nvidia":
        return NvmlMachine(seed)
    return Machine(VENDORS[vendor], seed) if vendor in VENDORS else None
