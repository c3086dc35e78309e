"""Whole documents as `hami-dra simulate` and `hami-dra whatif` print them. A wanted change: `make generate`, and read the diff."""

import pytest

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
