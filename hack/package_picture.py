"""The picture of the packages, and of a pod's way through them, as SVG. Called by `hack.generate`.

Rows are the layers that import-linter checks (pyproject.toml): a package imports only from rows
below its own. So the picture cannot say what is not so, and `make generate` shows a changed
structure as a changed picture.
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
NAME: Final = "docs/pictures/packages.svg"

WAY: Final = (
    ("controller.webhook", "convert", "a pod with HAMi's resource names gets claims"),
    ("hami_dra.kube", "reflector", "a watch brings the pod; one decoding path"),
    ("controller.reconcile.runtime", "informers", "the copy of the cluster changes, handlers are called"),
    ("controller.reconcile.queueing", "queue", "its turn: priority, then fairness between namespaces"),
    ("controller.reconcile.scheduling_cycle", "", "one unit at a time: assess, decide, assume"),
    ("controller.decide", "decision", "nodes are filtered, estimated, ranked"),
    ("controller.allocation", "search", "devices of the best node, by DRA's rules"),
    ("controller.scoring", "chooser", "in the order of the device policy"),
    ("controller.reconcile.binding", "claim_commit", "the allocation is written, the gate removed"),
    ("hami_dra.driver", "prepare", "kubelet asks; containers get their devices"),
)
"""Package, module in it, what happens there."""

_CLOSED: Final = ("controller.insight", "controller.views")
"""Packages with layers of their own that are drawn as one, or as the parts that the first contract names."""
_BOX: Final = (264, 30)
_ROW: Final = 40
_LEFT, _TOP = 24, 56
_LEGEND: Final = 24 + 3 * 288
_INK, _FAINT, _GROUND, _LINE = "#1f2933", "#52606d", "#ffffff", "#9aa5b1"
_FILL: Final = {"controller": "#e3eefa", "hami_dra": "#e9f5e6"}
_MARK: Final = "#b3424f"
_STYLE: Final = 'role="img" font-family="system-ui, sans-serif" font-size="13"'


def package_picture() -> dict[str, str]:
    """Return path below the root of the checkout → SVG. Raises ValueError where the way names no module."""
    for package, module, _ in WAY:
        path = ROOT / "/".join([*package.split("."), module]).rstrip("/")
        if not path.is_dir() and not path.with_suffix(".py").is_file():
            raise ValueError(f"hack/package_picture.py: {package}.{module} is not there any more")
    return {NAME: _drawn(_rows())}


def _rows() -> list[list[str]]:
    """Return the layers, top first; a package with layers of its own is replaced by these."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    first, *inner = (contract for contract in contracts if contract["type"] == "layers")
    layers = {contract["containers"][0]: contract for contract in inner}
    rows: list[list[str]] = []
    for row in _names(first):
        opened = [name for name in row if name in layers and name not in _CLOSED]
        rest = [name for name in row if name not in opened]
        for name in opened:
            below = [[f"{name}.{part}" for part in parts] for parts in _names(layers[name])]
            below[0] += rest
            rows += below
        if not opened:
            rows.append(rest)
    return rows


def _names(contract: Mapping[str, Any]) -> list[list[str]]:
    return [[name.strip(" ()") for name in layer.split("|")] for layer in contract["layers"]]


def _box(module: str, names: Iterable[str]) -> str:
    """Return the name of the box that a module is in; empty for modules outside the picture."""
    found = [name for name in names if f"{module}.".startswith(f"{name}.")]
    return max(found, key=len, default="")


def _drawn(rows: Sequence[Sequence[str]]) -> str:
    places = {
        name: (_LEFT + column * (_BOX[0] + 24), _TOP + number * _ROW)
        for number, row in enumerate(rows)
        for column, name in enumerate(row)
    }
    width, height = _LEGEND + 420, _TOP + len(rows) * _ROW + 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" {_STYLE}>',
        "<title>Packages by layer, and the way of a pod</title>",
        f'<rect width="{width}" height="{height}" fill="{_GROUND}"/>',
        f'<text x="{_LEFT}" y="26" font-size="16" fill="{_INK}">Packages: each imports only from the rows below</text>',
        f'<text x="{_LEGEND}" y="26" font-size="16" fill="{_INK}">The way of a pod</text>',
    ]
    parts += [_package(name, place) for name, place in places.items()]
    for number, (package, module, text) in enumerate(WAY, 1):
        x, y = places[_box(package, places)]
        before = sum(_box(other, places) == _box(package, places) for other, _, _ in WAY[: number - 1])
        parts.append(_mark(number, x + _BOX[0] - 6 - 20 * before, y))
        line = _TOP + (number - 1) * 48
        name = f"{package}.{module}".rstrip(".")
        parts += [
            _mark(number, _LEGEND + 10, line + 8),
            f'<text x="{_LEGEND + 28}" y="{line + 8}" fill="{_INK}">{escape(name)}</text>',
            f'<text x="{_LEGEND + 28}" y="{line + 26}" fill="{_FAINT}">{escape(text)}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _package(name: str, place: tuple[int, int]) -> str:
    x, y = place
    top, _, rest = name.partition(".")
    return (
        f'<rect x="{x}" y="{y}" width="{_BOX[0]}" height="{_BOX[1]}" rx="4" fill="{_FILL[top]}" stroke="{_LINE}"/>'
        f'<text x="{x + 10}" y="{y + 20}" fill="{_INK}"><tspan fill="{_FAINT}">{top}.</tspan>{rest}</text>'
    )


def _mark(number: int, x: int, y: int) -> str:
    return (
        f'<circle cx="{x}" cy="{y + 2}" r="9" fill="{_MARK}"/>'
        f'<text x="{x}" y="{y + 6}" fill="{_GROUND}" text-anchor="middle" font-size="11">{number}</text>'
    )
