"""hami-dra demo: the four patterns, as printed."""

import re

from typer.testing import CliRunner

from controller.cli import demo
from controller.cli.main import app

EXPECTED = {"A": ("binpack", "binpack", 1, 2), "B": ("spread", "binpack", 2, 2)} | {
    "C": ("binpack", "spread", 1, 4),
    "D": ("spread", "spread", 2, 4),
}
"""Node policy, card policy; nodes and cards that four pods of 7,500 MiB take."""
POD = re.compile(r"(demo-\S+)  (gpu-node-[12])  (GPU-[0-9a-f-]{36})  (7500 MiB)")


def test_the_four_patterns_are_shown():
    result = CliRunner().invoke(app, ["demo"], env={"COLUMNS": "80"})
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    intro, *sections = re.split(r"^(?=[A-D]  nodes: )", result.stdout, flags=re.MULTILINE)
    assert intro.startswith("Four pods of 7,500 MiB on two nodes with four GPUs each")
    assert [section[0] for section in sections] == list(EXPECTED)
    for section in sections:
        node_policy, device_policy, nodes, cards = EXPECTED[section[0]]
        assert f"nodes: {node_policy}, devices: {device_policy} " in section
        pods = POD.findall(section)
        assert len({name for name, *_ in pods}) == 4
        assert len({node for _, node, *_ in pods}) == nodes
        assert len({uuid for _, _, uuid, _ in pods}) == cards
        words = f"4 pods on {nodes} node{'s' * (nodes > 1)} and {cards} devices"
        assert words in section
        bars = re.findall(r"\[([█▓·]{13})\]", section)
        assert len(bars) == 8
        assert sum("█" in bar for bar in bars) == cards
    assert not [line for line in result.stdout.splitlines() if line != line.rstrip() and "[" not in line]
    assert max(len(line.rstrip()) for line in result.stdout.splitlines()) <= demo.WIDTH
    for line in ("make cluster", "simulate -f PATH", "convert -f PATH", "docs/policies.md"):
        assert line in sections[-1]


def test_without_a_checkout_only_what_is_installed_is_named():
    text = "\n".join(line.text for line in demo._next(in_checkout=False))
    assert "make cluster" not in text
    assert "docs/" not in text
    assert "simulate -f PATH" in text
