"""Every file, folder and heading that a document points to is there, and every path that it names."""

import re

import pytest

from tests.docs.commands_in_docs import DOCUMENTS, ROOT

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PATH = re.compile(r"`((?:[\w.-]+/)+[\w.{},-]*)`")
"""Paths in backticks: `manifests/webhook.yaml`, `controller/decide/`."""
OURS = {path.name for path in ROOT.iterdir()}


def text_of(path):
    """Without fenced blocks."""
    return re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(path):
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document):
    for target in LINK.findall(text_of(document)):
        if target.startswith(("https://", "http://")):
            continue
        name, _, anchor = target.partition("#")
        file = (document.parent / name).resolve() if name else document
        assert file.exists(), f"{target}: no such file"
        assert not anchor or anchor in anchors(file), f"{target}: no such heading"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_paths_that_are_named_exist(document):
    for path in PATH.findall(text_of(document)):
        if path.split("/")[0] in OURS:
            assert (ROOT / path).exists(), path


def test_every_document_is_reachable_from_the_readme():
    seen, waiting = set(), [ROOT / "README.md"]
    while waiting:
        document = waiting.pop()
        document = document / "README.md" if document.is_dir() else document
        if document in seen or document.suffix != ".md" or not document.exists():
            continue
        seen.add(document)
        links = (target.partition("#")[0] for target in LINK.findall(document.read_text()))
        waiting += [(document.parent / link).resolve() for link in links if link and "://" not in link]
    assert {path for path in DOCUMENTS if path not in seen} == set()


def test_pages_for_use_are_few_and_short():
    pages = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs/vendors").glob("*.md"), *(ROOT / "docs/zh").glob("*.md")]
    assert len([page for page in pages if page.parent.name == "docs"]) <= 30
    words = {page.name: len(page.read_text().split()) for page in pages}
    assert sum(words.values()) <= 45_000, words


NAMED = re.compile(r"(?<![\w./-])((?:docs|examples)/[\w./-]+\.md)(#[\w-]+)?")
"""Pages that code and manifests name: docs/claims.md, docs/vendors/nvidia.md#hami-core-on-the-nodes."""
SOURCES = [
    path
    for folder in ("hami_dra", "controller", "charts", "manifests", "monitoring", "deviceclasses", "driverprofiles", "hack", ".github")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in {".py", ".yaml", ".yml", ".md", ".tpl", ".txt", ".html", ".json"} and not path.is_symlink()
]  # fmt: skip
ELSEWHERE = {"docs/x.md", "docs/driver-attributes.md", "docs/kunlun-vxpu-support.md", "docs/scheduler-event-log.md", "docs/usage/kunlunxin_xpu_deployment.md"}  # fmt: skip
"""An example, and pages of HAMi and of AMD's driver."""


def test_every_page_that_code_names_exists():
    lost = {
        f"{path.relative_to(ROOT)}: {name}{anchor}"
        for path in SOURCES
        for name, anchor in NAMED.findall(path.read_text())
        if name not in ELSEWHERE and not ((ROOT / name).exists() and (not anchor or anchor[1:] in anchors(ROOT / name)))
    }
    assert lost == set()
