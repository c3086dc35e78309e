"""The table of mistakes (tests/fixtures/mistakes) is complete, and its sentences say what to do.

That users read these sentences is shown by tests/e2e/test_mistakes.py.
"""

import re
from pathlib import Path

import pytest
import yaml

FOLDER = Path(__file__).parents[1] / "fixtures" / "mistakes"
FOLDERS = sorted(each for each in FOLDER.iterdir() if each.is_dir())
JUDGED = range(1, 37)
"""The mistakes that the messages were first judged by."""
MOST_LENGTH = 1_024
"""Characters of an event's note."""
OF_OTHERS = {"08-selector-with-a-syntax-error", "17-claim-template-missing"}
"""What the API server or kube-controller-manager says."""
WAITS = {
    "15-whole-cards-while-all-are-shared",
    "42-host-port-that-is-taken",
    "43-quota-that-is-used-up",
    "44-more-replicas-than-nodes",
    "50-memory-that-is-in-use",
}
"""Nothing is wrong: it is in use now."""
FIX = re.compile(
    r"never will|did you mean|(?<![a-z])(write|add|move|remove|create|change|correct|relax|label|delete|ask|have|is used|test|ignored"
    r"|expected|see|start|check|drop|bind|is not one of|name each of)(?![a-z])",
    re.IGNORECASE,
)


def number_of(folder):
    return int(folder.name.partition("-")[0])


def told_in(folder):
    expected = yaml.safe_load((folder / "expect.yaml").read_text())
    assert expected["mistake"].endswith("."), "a sentence"
    assert expected["told"]
    return expected["told"]


def test_each_of_the_judged_mistakes_has_a_case_and_there_are_fourteen_more():
    numbers = {number_of(each) for each in FOLDERS}
    assert set(JUDGED) <= numbers
    assert len(numbers - set(JUDGED)) >= 14


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda each: each.name)
def test_a_case_says_what_and_how_to_fix_it(folder):
    sentences = [each["says"].replace("{namespace}", "n") for each in told_in(folder) if each["where"] != "runs"]
    for sentence in sentences:
        assert len(sentence) <= MOST_LENGTH
        assert not re.search(r"nobody|whoever|mend|anew", sentence)
    if sentences and folder.name not in OF_OTHERS | WAITS:
        assert any(map(FIX.search, sentences)), sentences
    for each in told_in(folder):
        if each.get("reason") == "FilteringFailed" and each["says"].startswith("no node fits"):
            assert "Run: hami-dra explain" in each["says"]
            asked, _, best = each["says"].partition("; ")
            assert re.search(
                r"needs .*\d|needs an? |wants|does not tolerate|excludes|matches no|is not published|topologyKey|on \S+: ",
                asked,
            )
            assert re.search(r"\d|\bno |there are|published:|on the nodes|\.\.\.", best), "the best there is"
