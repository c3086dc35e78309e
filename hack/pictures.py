"""The pictures of README and docs, as SVG: nodes, their cards, and who sits on them. Called by
`hack.generate`.

Nothing is drawn by hand: each picture is what `simulate` says of manifests that a reader can run,
so that a change of what hami-dra decides is seen as a changed picture. Light colours on a ground of
their own: readable in a dark page, too.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Final

from controller.insight.simulation import SimulationSettings, simulate
from controller.scoring.policies import DevicePolicy, Policies
from hami_dra.api.quantity import Quantity
from hami_dra.driver.simulated import machine
from hami_dra.driver.slices import machine_pools, slice_bodies
from hami_dra.kube.documents import Document, read_documents

ROOT: Final = Path(__file__).resolve().parent.parent
FOLDER: Final = "docs/pictures"

_CARD: Final = (62, 74)
_GAP: Final = 8
_PAD: Final = 14
_HEAD: Final = 24
_TENANTS: Final = ("#33658a", "#b3424f", "#1b6e2b", "#8a7400", "#2c7a94", "#8b2a63", "#6b5200", "#52606d")
"""Apart for most colour-blind eyes, dark enough for white letters; each tenant is labelled as well."""
_INK, _FAINT, _GROUND, _LINE = "#1f2933", "#52606d", "#ffffff", "#9aa5b1"


@dataclass(frozen=True)
class Panel:
    """One cluster after the pods were placed. `islands` are outlined."""

    title: str
    subtitle: str
    slices: Sequence[Mapping[str, Any]]
    placements: Sequence[Mapping[str, Any]]
    names: Mapping[str, str]
    """Pod → what its share of a card is labelled with."""


def pictures() -> dict[str, str]:
    """Path below the root of the checkout → SVG."""
    return {
        f"{FOLDER}/patterns.svg": drawn(
            _patterns(), columns=2, alt="The four patterns: four pods on two nodes with four cards each"
        ),
        f"{FOLDER}/topology.svg": drawn(
            _topology(), columns=1, alt="Cards chosen by their links: four of eight, one card, two of a zone"
        ),
    }


# --- what is shown -----------------------------------------------------------------------------------------------------


def _patterns() -> list[Panel]:
    """examples/claims on one node with 4 T4 and one with 4 A10G."""
    panels = []
    for file in sorted((ROOT / "examples/claims").glob("*.yaml")):
        letter, _, words = file.stem.partition("-")
        _, node, _, card = words.split("-")
        slices = _slices({"g4dn": "g4dn.12xlarge", "g5": "g5.12xlarge"})
        panels.append(_panel(f"{letter.upper()}  nodes: {node}, cards: {card}", "", slices, read_documents([file])))
    return panels


def _topology() -> list[Panel]:
    four_busy = [_pod(f"t{number}", "nvidia.com/gpu", 1, "h100-b") for number in range(4)]
    aware = Policies(device_policy=DevicePolicy(("topology-aware",)))
    linked = _slices({"h100-a": "dgx-h100", "h100-b": "dgx-h100"})
    best_fit = _panel(
        "Four linked cards",
        "h100-b has exactly four free cards in its island: a goes there, and the eight of h100-a stay whole",
        linked,
        [*four_busy, _pod("a", "nvidia.com/gpu", 4)],
        aware,
    )
    pairs = _slices({"v100": "v100-pairs-8"})
    damage = _panel(
        "One card",
        "after x took a card, y takes the other one of the pair that is broken already: three pairs stay whole",
        pairs,
        [_pod("x", "nvidia.com/gpu", 1), _pod("y", "nvidia.com/gpu", 1)],
        aware,
    )
    zones = _slices({"c500": "c500-8"})
    metax = _panel(
        "MetaX: two cards, then four",
        "b takes two of one zone, c the four of the other; no job of one zone is in the way of the next",
        zones,
        [_pod("b", "metax-tech.com/gpu", 2), _pod("c", "metax-tech.com/gpu", 4)],
        Policies(),
    )
    return [best_fit, damage, metax]


def _slices(nodes: Mapping[str, str]) -> list[dict[str, Any]]:
    return [body for node, name in nodes.items() for body in slice_bodies(machine_pools(machine(name, node)))]


def _pod(name: str, resource: str, count: int, node: str = "") -> dict[str, Any]:
    selector = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
    container = {"name": "main", "resources": {"limits": {resource: count}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], **selector},
    }


def _panel(
    title: str,
    subtitle: str,
    slices: Sequence[dict[str, Any]],
    given: Iterable[Document | dict[str, Any]],
    policies: Policies | None = None,
) -> Panel:
    names = dict.fromkeys(each["spec"]["nodeName"] for each in slices)
    nodes = [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}}
        for name in names
    ]
    cluster = [Document(Path("picture.yaml"), number, raw) for number, raw in enumerate([*nodes, *slices], 1)]
    pods = [each if isinstance(each, Document) else Document(Path("pods.yaml"), 1, each) for each in given]
    classes = read_documents([ROOT / "deviceclasses"])
    report = simulate([*cluster, *classes, *pods], SimulationSettings(policies or Policies()))
    if report.unplaced:
        raise SystemExit(f"picture {title}: {report.unplaced}")
    labels = {entry["pod"]: str(number) for number, entry in enumerate(report.placements, 1)}
    if subtitle:
        labels = {pod: pod.partition("/")[2] for pod in labels}
    return Panel(title, subtitle, slices, report.placements, labels)


# --- how it is drawn ---------------------------------------------------------------------------------------------------


def drawn(panels: Sequence[Panel], *, columns: int, alt: str) -> str:
    boxes = [_boxed(panel) for panel in panels]
    width = max(box[0] for box in boxes)
    rows = [boxes[start : start + columns] for start in range(0, len(boxes), columns)]
    heights = [max(box[1] for box in row) for row in rows]
    body = []
    top = _PAD
    for row, height in zip(rows, heights, strict=True):
        for column, (_, _, text) in enumerate(row):
            body.append(f'<g transform="translate({_PAD + column * (width + 2 * _PAD)} {top})">{text}</g>')
        top += height + _PAD
    full = columns * (width + 2 * _PAD)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {full} {top}" width="{full}" height="{top}" role="img" '
        f'aria-label="{escape(alt)}" font-family="system-ui, sans-serif" font-size="13">\n'
        f'<rect width="{full}" height="{top}" rx="8" fill="{_GROUND}"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _boxed(panel: Panel) -> tuple[int, int, str]:
    """Width, height and the text of a panel."""
    parts = [f'<text y="14" font-weight="600" fill="{_INK}">{escape(panel.title)}</text>']
    top = _HEAD
    if panel.subtitle:
        parts.append(f'<text y="{top + 8}" fill="{_FAINT}">{escape(panel.subtitle)}</text>')
        top += 20
    tenants = _tenants(panel)
    width = 0
    side = _of_node(panel.slices)
    left = 0
    for node, devices in side.items():
        box = len(devices) * (_CARD[0] + _GAP) + _GAP
        if left and left + box > 8 * (_CARD[0] + _GAP) + 3 * _GAP:
            left, top = 0, top + _CARD[1] + 46
        parts.append(_node(node, devices, tenants, left, top))
        left += box + _PAD
        width = max(width, left - _PAD)
    longest = max(len(panel.title), len(panel.subtitle)) * 6.6
    return max(width, int(longest)), top + _CARD[1] + 44, "".join(parts)


def _node(
    node: str,
    devices: Sequence[Mapping[str, Any]],
    tenants: Mapping[tuple[str, str], list[tuple[str, float]]],
    left: int,
    top: int,
) -> str:
    width = len(devices) * (_CARD[0] + _GAP) + _GAP
    parts = [
        f'<rect x="{left}" y="{top}" width="{width}" height="{_CARD[1] + 34}" rx="6" fill="none" stroke="{_LINE}"/>',
        f'<text x="{left + _GAP}" y="{top + 16}" fill="{_FAINT}">{escape(node)} · {escape(_product(devices[0]))}</text>',
    ]
    islands: dict[int, list[int]] = {}
    for place, device in enumerate(devices):
        x, y = left + _GAP + place * (_CARD[0] + _GAP), top + 24
        island = int(_attribute(device, "linkGroup") or 0)
        if island > 0:
            islands.setdefault(island, []).append(x)
        parts.append(f'<rect x="{x}" y="{y}" width="{_CARD[0]}" height="{_CARD[1]}" rx="4" fill="#e4e7eb"/>')
        filled = float(y + _CARD[1])
        for label, share in tenants.get((node, str(device["name"])), ()):
            height = share * _CARD[1]
            filled -= height
            colour = _TENANTS[sum(map(ord, label)) % len(_TENANTS)] if not label.isdigit() else _TENANTS[int(label) - 1]
            parts.append(
                f'<rect x="{x}" y="{filled:.1f}" width="{_CARD[0]}" height="{height:.1f}" rx="4" fill="{colour}" stroke="{_GROUND}"/>'
            )
            parts.append(
                f'<text x="{x + _CARD[0] / 2:.0f}" y="{filled + height / 2 + 5:.1f}" text-anchor="middle" '
                f'font-weight="600" fill="{_GROUND}">{escape(label)}</text>'
            )
    for members in islands.values():
        start, end = min(members) + 4, max(members) + _CARD[0] - 4
        y = top + 24 + _CARD[1] + 5
        parts.append(f'<path d="M{start} {y}H{end}" stroke="{_INK}" stroke-width="2.5" stroke-linecap="round"/>')
    return "".join(parts)


def _tenants(panel: Panel) -> dict[tuple[str, str], list[tuple[str, float]]]:
    """(node, device) → label and share of the card's memory."""
    totals = {
        (each["spec"]["nodeName"], device["name"]): _memory(device["capacity"]["memory"]["value"])
        for each in panel.slices
        for device in each["spec"].get("devices", ())
    }
    found: dict[tuple[str, str], list[tuple[str, float]]] = {}
    for entry in panel.placements:
        for claim in entry["claims"]:
            for result in claim["allocation"]["devices"]["results"]:
                card = (entry["node"], result["device"])
                used = _memory(result.get("consumedCapacity", {}).get("memory", "0"))
                found.setdefault(card, []).append((panel.names[entry["pod"]], used / totals[card] if used else 1.0))
    return found


def _of_node(slices: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for each in slices:
        found.setdefault(each["spec"]["nodeName"], []).extend(each["spec"].get("devices", ()))
    return {
        node: sorted(devices, key=lambda device: int(_attribute(device, "index"))) for node, devices in found.items()
    }


def _attribute(device: Mapping[str, Any], name: str) -> Any:
    (value,) = device["attributes"].get(f"hami.io/{name}", {"int": 0}).values()
    return value


def _product(device: Mapping[str, Any]) -> str:
    return str(_attribute(device, "productName"))


def _memory(text: str) -> float:
    return float(Quantity.parse(text).value())
