"""Some documents name a test for what they promise; each of them must be there."""

import ast
import re
from functools import cache

import pytest

from tests.docs.commands_in_docs import ROOT

_REFERENCE = re.compile(r"`((?:[a-z_0-9/]+\.py)?)((?:::[a-z_0-9]+)?)`")
PROMISES = {
    "design/security-tests.md": "# Security",
    "design/attacks.md": "# Attacks",
    "design/driver.md": "## What shows it",
    "design/discovery.md": "## What shows it",
}
"""Page → heading from which on it names tests."""


def references(page):
    """(path below tests/, name of a test or ""), in order; a bare `::name` is of the file named before it."""
    path = ""
    _, heading, text = (ROOT / "docs" / page).read_text().partition(PROMISES[page])
    assert heading
    for found_path, name in _REFERENCE.findall(text):
        path = found_path or path
        if found_path or name:
            yield path, name.removeprefix("::")


@pytest.mark.parametrize("page", PROMISES)
def test_each_test_that_is_named_exists(page):
    named = list(references(page))
    assert len(named) > 20
    missing = []
    for path, name in named:
        file = ROOT / "tests" / path
        if not file.is_file():
            missing.append(path)
        elif name and name not in functions(file.read_text()):
            missing.append(f"{path}::{name}")
    assert not missing


@cache
def functions(source):
    return {
        node.name for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
