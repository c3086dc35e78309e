"""What docs/quota.md states, held against the code: keys and units, the examples of refusals."""

import re

import yaml

from hami_dra.vendors.quotas import Counted
from hami_dra.vendors.registry import QUOTA_NAMES
from tests.docs.commands_in_docs import ROOT, blocks
from tests.support.manifests import simulated
from tests.support.quotas import CLASSES, devices_of, legacy, nvidia_node, quota, reasons_of

PAGE = ROOT / "docs/quota.md"
TEXT = PAGE.read_text()
PODS = {
    "one device, memory not named": legacy("p", gpu=1),
    "two devices with 3000 each": legacy("p", gpu=2, gpumem=3000),
}


def rows(heading):
    table = re.search(r"(?:^\|.*\|\n)+", TEXT.partition(heading)[2], re.MULTILINE)[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_every_key_is_in_the_table_with_its_unit():
    reported = {key.strip("`"): (added, unit) for key, added, unit in rows("\n## Keys\n")}
    assert reported.keys() == QUOTA_NAMES.keys()
    for key, name in QUOTA_NAMES.items():
        added, unit = reported[key]
        assert unit.startswith(name.unit), key
        assert (name.counted is Counted.WHOLE) == ("held as a whole" in added), key
        assert (name.counted is Counted.PART) == (added == "parts of devices"), key


def test_the_quota_shown_is_one():
    shown = next(yaml.safe_load(text) for language, text in blocks(PAGE) if language == "yaml")
    assert shown["kind"] == "ResourceQuota"
    assert shown["spec"]["hard"].keys() <= QUOTA_NAMES.keys()


def test_the_examples_of_refusals_come_out_as_told():
    for cards, limit, pod, outcome in rows("A smaller device may still fit:"):
        sizes = [int(size) for size in cards.split(", ")]
        report = simulated(*CLASSES, *nvidia_node("n1", sizes), quota({"nvidia.com/gpumem": limit}), PODS[pod])
        if "refused" in outcome:
            reported = {code: int(count) for code, count in re.findall(r"`(\w+)` (\d+)", outcome)}
            assert reasons_of(report) == {"default/p": reported}
        else:
            (device,) = devices_of(report)["default/p"]
            assert f"the device of {sizes[int(device.removeprefix('gpu-'))]}" == outcome
