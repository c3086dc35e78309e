"""Versions against answers recorded from github.com/blang/semver v4.0.0 (semver_golden.jsonl)."""

import json
from pathlib import Path

import pytest

from hami_dra.api.semver import InvalidVersion, SemVer

GOLDEN = [json.loads(line) for line in (Path(__file__).parent / "semver_golden.jsonl").read_text("utf-8").splitlines()]


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: " ".join(case["versions"]))
def test_same_as_go(case):
    parsed = []
    for text, key in zip(case["versions"], ("first", "second"), strict=True):
        if key not in case:
            with pytest.raises(InvalidVersion):
                SemVer.parse(text)
        else:
            parsed.append(SemVer.parse(text))
            assert str(parsed[-1]) == case[key]
    if "compare" in case:
        first, second = parsed
        assert (first > second) - (first < second) == case["compare"]
        assert (first >= second) - (first <= second) == case["compare"]
        assert (first == second) == (case["compare"] == 0)
        assert (hash(first) == hash(second)) or case["compare"] != 0


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("v1.2.3", "1.2.3"),
        ("1", "1.0.0"),
        ("v01.02", "1.2.0"),
        ("1.00.003", "1.0.3"),
        ("00.1.0", "0.1.0"),
        ("1.2.003-rc.1", "1.2.3-rc.1"),
        ("1.2.00-rc.1", "1.2.0-rc.1"),
    ],
)
def test_normalized(text, meaning):
    assert str(SemVer.parse(text, normalize=True)) == meaning
    with pytest.raises(InvalidVersion):
        SemVer.parse(text)


@pytest.mark.parametrize("text", ["", "v", " 1.2.3", "V1.2.3", "1-rc", "1.2+b", "vv1.2.3", "1.2.3.4"])
def test_not_even_normalized(text):
    with pytest.raises(InvalidVersion):
        SemVer.parse(text, normalize=True)
