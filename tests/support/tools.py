"""Vendors' command line tools that answer from files, for tests of discovery and monitoring."""

import os
import shlex
from pathlib import Path

FIXTURES = Path(__file__).parent.parent / "fixtures" / "discovery"
MONITOR_FIXTURES = FIXTURES.parent / "monitor"


class FakeTools:
    """A folder of tools that stands alone in PATH, and an empty /sys."""

    def __init__(self, folder: Path, monkeypatch) -> None:
        self.folder = folder / "bin"
        self.sys = folder / "sys"
        self.folder.mkdir()
        self.sys.mkdir()
        self._answers = folder / "answers"
        self._answers.mkdir()
        # the shell's own helpers stay reachable behind the tools
        monkeypatch.setenv("PATH", f"{self.folder}{os.pathsep}/usr/bin{os.pathsep}/bin")

    def script(self, name: str, body: str) -> Path:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        path.chmod(0o755)
        return path

    def answer(self, tool: str, answers: dict[str, str | Path]) -> None:
        """Arguments → text, or file with it. Other arguments: usage and exit code 2."""
        cases = []
        for number, (arguments, answer) in enumerate(answers.items()):
            content = answer.read_bytes() if isinstance(answer, Path) else answer.encode()
            stored = self._answers / f"{tool}.{number}"
            stored.write_bytes(content)
            cases.append(f"{shlex.quote(arguments)}) cat {shlex.quote(str(stored))} ;;")
        self.script(tool, 'case "$*" in\n' + "\n".join(cases) + '\n*) echo "unknown option: $*" >&2; exit 2 ;;\nesac')

    def pci(self, bus_id: str, *above: str, numa: int = -1) -> None:
        """A PCI device in /sys below the root complex and bridges `above`."""
        device = self.sys.joinpath("devices", *above, bus_id)
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{numa}\n", encoding="utf-8")
        known = self.sys / "bus/pci/devices"
        known.mkdir(parents=True, exist_ok=True)
        (known / bus_id).symlink_to(device)
