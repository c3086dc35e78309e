"""docs/security.md names a test for what it promises; each of them must be there."""

import ast
import re

from tests.docs.commands_in_docs import ROOT

_REFERENCE = re.compile(r"`((?:[a-z_0-9/]+\.py)?)((?:::[a-z_0-9]+)?)`")


def references():
    """(path below tests/, name of a test or ""), in order; a bare `::name` is of the file named before it."""
    path = ""
    for found_path, name in _REFERENCE.findall((ROOT / "docs/security.md").read_text()):
        path = found_path or path
        if found_path or name:
            yield path, name.removeprefix("::")


def test_each_test_that_is_named_exists():
    named = list(references())
    assert len(named) > 50
    missing = []
    for path, name in named:
        file = ROOT / "tests" / path
        if not file.is_file():
            missing.append(path)
        elif name and name not in functions(file.read_text()):
            missing.append(f"{path}::{name}")
    assert not missing


def functions(source):
    return {
        node.name for node in ast.walk(ast.parse(source)) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
