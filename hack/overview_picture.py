"""The picture of how a pod gets its devices, for the README, as SVG. Called by `hack.generate`."""

from collections.abc import Sequence
from html import escape
from typing import Final

NAME: Final = "docs/pictures/overview.svg"

STATIONS: Final[Sequence[tuple[str, str, Sequence[str]]]] = (
    ("your pod", "#eef1f4", ("HAMi's names, or", "ResourceClaims")),
    ("webhook", "#e3eefa", ("turns HAMi's names", "into claims")),
    ("controller", "#e3eefa", ("scores nodes and devices,", "writes the allocation")),
    ("kube-scheduler", "#eef1f4", ("binds the pod", "to that node")),
    ("node", "#e9f5e6", ("the driver prepares", "the devices for kubelet")),
)
"""Title, ground, lines; in the order of a pod's way. Grey ones are not hami-dra's."""

_BOX: Final = (188, 86)
_GAP: Final = 30
_LEFT, _TOP = 20, 24
_BACK: Final = 46
"""How far below the boxes the way of the slices runs."""
_INK, _FAINT, _GROUND, _LINE, _WAY = "#1f2933", "#52606d", "#ffffff", "#9aa5b1", "#1b6e2b"
_STYLE: Final = 'role="img" font-family="system-ui, sans-serif" font-size="13"'


def overview_picture() -> dict[str, str]:
    """Path below the root of the checkout → SVG."""
    step = _BOX[0] + _GAP
    width, bottom = 2 * _LEFT + len(STATIONS) * step - _GAP, _TOP + _BOX[1]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{bottom + _BACK + 22}" {_STYLE}>',
        "<title>How a pod gets its devices</title>",
        f'<rect width="{width}" height="{bottom + _BACK + 22}" fill="{_GROUND}"/>',
        *(_station(number, _LEFT + number * step) for number in range(len(STATIONS))),
        *(_arrow(_LEFT + number * step + _BOX[0]) for number in range(len(STATIONS) - 1)),
        _slices(_LEFT + 4 * step + _BOX[0] // 2, _LEFT + 2 * step + _BOX[0] // 2, bottom),
    ]
    return {NAME: "\n".join([*parts, "</svg>"]) + "\n"}


def _station(number: int, x: int) -> str:
    title, ground, lines = STATIONS[number]
    box = f'<rect x="{x}" y="{_TOP}" width="{_BOX[0]}" height="{_BOX[1]}" rx="6" fill="{ground}" stroke="{_LINE}"/>'
    head = f'<text x="{x + 12}" y="{_TOP + 26}" font-size="15" font-weight="600" fill="{_INK}">{escape(title)}</text>'
    rest = [
        f'<text x="{x + 12}" y="{_TOP + 50 + 18 * row}" fill="{_FAINT}">{escape(line)}</text>'
        for row, line in enumerate(lines)
    ]
    return "".join([box, head, *rest])


def _arrow(x: int) -> str:
    y = _TOP + _BOX[1] // 2
    return _path(f"M{x + 4} {y}H{x + _GAP - 5}", _FAINT) + _head(x + _GAP - 4, y, "right", _FAINT)


def _slices(start: int, end: int, bottom: int) -> str:
    """Draw the way back from the node to the controller."""
    level = bottom + _BACK - 16
    text = "ResourceSlices: each device with memory, cores, links and health"
    return (
        _path(f"M{start} {bottom + 2}V{level}H{end}V{bottom + 6}", _WAY)
        + _head(end, bottom + 4, "up", _WAY)
        + f'<text x="{(start + end) // 2}" y="{level + 18}" text-anchor="middle" fill="{_WAY}">{text}</text>'
    )


def _path(way: str, colour: str) -> str:
    return f'<path d="{way}" fill="none" stroke="{colour}" stroke-width="1.5"/>'


def _head(x: int, y: int, towards: str, colour: str) -> str:
    points = f"{x},{y} {x - 8},{y - 4} {x - 8},{y + 4}" if towards == "right" else f"{x},{y} {x - 4},{y + 8} {x + 4},{y + 8}"  # fmt: skip
    return f'<polygon points="{points}" fill="{colour}"/>'
