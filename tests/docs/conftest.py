"""For all tests of documents and examples: files that do not change are parsed once. Nearly all of these tests read all of resourceslices/."""

import copy

import pytest

from hami_dra.kube import documents

_PARSED = {}
"""Values by file suffix and text; what cannot be parsed is not here."""


@pytest.fixture(autouse=True)
def parsed_once(monkeypatch):
    parse = documents._parse

    def cached(file, text):
        key = file.suffix, text
        if key not in _PARSED:
            _PARSED[key] = list(parse(file, text))
        return copy.deepcopy(_PARSED[key])

    monkeypatch.setattr(documents, "_parse", cached)
