"""Whole documents as `hami-dra simulate` prints them. A wanted change: `make generate`, and read the diff."""

import pytest

from hack.generate import ROOT, SIMULATE, simulated

CASES = sorted(path.parent.name for path in (ROOT / SIMULATE).glob("*/arguments"))


def test_there_are_cases():
    assert len(CASES) > 5


@pytest.mark.parametrize("case", CASES)
def test_golden(case):
    folder = ROOT / SIMULATE / case
    notes = folder / "notes"
    output, told = simulated(case)
    assert output.splitlines() == (folder / "output").read_text().splitlines()
    assert told == (notes.read_text() if notes.exists() else "")
