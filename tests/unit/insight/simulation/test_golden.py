"""Whole documents as `hami-dra simulate` and `hami-dra whatif` print them. A wanted change: `make generate`, and read the diff."""

import pytest

from controller.cli import progress
from hack.generate import GOLDEN, ROOT, golden_cases, printed

CASES = golden_cases()


@pytest.mark.parametrize("folder", GOLDEN)
def test_there_are_cases(folder):
    assert [case for case in CASES if case.startswith(folder)]


@pytest.mark.parametrize("case", CASES)
def test_golden(case):
    folder = ROOT / case
    notes = folder / "notes"
    output, reported = printed(case)
    assert output.splitlines() == (folder / "output").read_text().splitlines()
    assert reported == (notes.read_text() if notes.exists() else "")


def test_a_slow_machine_prints_the_same(monkeypatch):
    """What takes more than two seconds shows its progress on stderr: that is no note."""
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    case = next(case for case in CASES if case.endswith("whatif/pack"))
    assert printed(case) == ((ROOT / case / "output").read_text(), (ROOT / case / "notes").read_text())
