"""docs/metrics.md names every metric that is exported and every alert, and none that is not."""

import re
import tomllib

import pytest

from hami_dra.api.legacy_metrics import NameSet
from tests.support import expositions
from tests.support.monitoring import DASHBOARD, PANELS, ROOT, alerts

TEXT = (ROOT / "docs/metrics.md").read_text()
_NAME = (
    r"hami(?:_[a-z0-9]+){2,}|(?:GPU|nodeGPU|vGPU|Quota)[A-Za-z]+|(?:vGPU|Device)_[a-z_]+|Host[A-Za-z]+|Mig[A-Z][a-z]+"
)


def families(said):
    return {name for name in re.findall(r"^# TYPE (\S+) ", said, re.MULTILINE) if not name.endswith("_created")}


PLAIN = families(expositions.of_controller()) | families(expositions.of_driver()) | families(expositions.of_webhook())
ALL = frozenset(NameSet)
OF_HAMI = (families(expositions.of_controller(ALL)) | families(expositions.of_driver(ALL))) - PLAIN


def named(text):
    """Names in backticks, without those that only begin like one (`hami_gpu_*`)."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return {name for name in re.findall(r"`([^`]+)`", prose) if re.fullmatch(_NAME, name)}


def test_every_metric_is_explained_and_no_other():
    assert named(TEXT) == PLAIN | OF_HAMI


def test_names_of_hami_are_in_their_table_and_only_with_the_switch():
    table = TEXT.partition("### Names of HAMi")[2].partition("\n## ")[0]
    assert named(table) >= OF_HAMI
    assert len(OF_HAMI) == 37


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.stem)
def test_other_pages_name_no_metric_that_is_not_there(page):
    found = {name for name in named(page.read_text()) if name.startswith(("hami_dra_", "hami_device_", "hami_vgpu_"))}
    found = {name for name in found if not (ROOT / name).exists()}
    assert found - PLAIN - OF_HAMI == set()


def test_every_alert_has_its_section_and_every_section_its_alert():
    assert set(re.findall(r"^### (HamiDra\w+)$", TEXT, re.MULTILINE)) == alerts().keys()


@pytest.mark.parametrize("name", alerts())
def test_an_alert_leads_to_its_section(name):
    rule = alerts()[name]
    repository = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
    assert rule["annotations"]["runbook_url"] == f"{repository}/blob/main/docs/metrics.md#{name.lower()}"
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}


def test_the_dashboard_chooses_among_what_there_is():
    asked = {each["query"]["query"] for each in DASHBOARD["templating"]["list"] if each["type"] == "query"}
    for query in asked:
        metric, label = re.fullmatch(r"label_values\((\w+)[^,]*, (\w+)\)", query).groups()
        assert re.search(rf'^{metric}{{.*\b{label}="', expositions.of_controller(), re.MULTILINE), query


def test_the_dashboard_can_be_imported():
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    taken = set()
    for panel in PANELS:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
