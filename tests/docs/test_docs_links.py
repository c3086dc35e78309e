"""Every file, folder and heading that a document points to is there, and every path that it names."""

import re

import pytest

from tests.docs.commands_in_docs import DOCUMENTS, ROOT

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PATH = re.compile(r"`((?:[\w.-]+/)+[\w.{},-]*)`")
"""Paths in backticks: `manifests/webhook.yaml`, `controller/scheduling/decide/`."""
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
