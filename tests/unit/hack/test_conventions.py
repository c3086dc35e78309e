"""The checks of `hack/conventions.py` find what they are for."""

import ast

import pytest

from hack import conventions, package_picture
from hack.size import size_of


def test_a_module_that_calls_itself_pure_imports_nothing_that_waits():
    tree = ast.parse('"""Adds. Pure."""\nimport asyncio\nfrom hami_dra.kube import http\n')
    assert list(conventions._impure("x.py", tree)) == ["asyncio", "hami_dra.kube.http"]
    assert list(conventions._impure("x.py", ast.parse('"""Adds."""\nimport asyncio\n'))) == []


def test_of_a_command_only_the_body_counts():
    long = "def f(\n" + "    a=0,\n" * 70 + "):\n    pass\n"
    assert conventions.sizes("controller/cli/x.py", long, ast.parse(long)) == {}
    assert conventions.sizes("controller/x.py", long, ast.parse(long)) == {"controller/x.py::f": 73}


def test_a_module_of_many_concepts_is_found():
    text = "def f(): ...\n" * (conventions.MOST_CONCEPTS + 1)
    assert conventions.sizes("controller/x.py", text, ast.parse(text)) == {"controller/x.py::*": 15}


def modules_of(monkeypatch, **texts):
    """Let the product consist of these modules."""
    found = tuple((f"controller/{name}.py", text, ast.parse(text)) for name, text in texts.items())
    monkeypatch.setattr(conventions, "modules", lambda: found)


def test_a_small_module_belongs_to_its_only_importer(monkeypatch):
    modules_of(
        monkeypatch, a="x = 1\n", b="from controller.a import x\n", c="y = 1\n" * 40, d="from controller import c\n"
    )
    assert list(conventions.crumbs()) == ["controller.a has 1 lines and one importer: controller.b"]
    modules_of(monkeypatch, a="x = 1\n", b="from controller.a import x\n", d="from controller import a\n")
    assert list(conventions.crumbs()) == []


def test_a_function_names_what_it_found(monkeypatch):
    body = "    # why\n" * 8 + "    return found\n"
    vague, plain = f"def f():\n    found = 1\n{body}", f"def g():\n    node = found = 1\n{body}"
    modules_of(monkeypatch, a=vague + plain)
    assert conventions.vague_functions() == ["controller/a.py::f"]


def test_lines_of_code_leave_out_what_explains_them():
    text = 'import os\n\n\ndef f():\n    """Adds."""\n    return """a\nb"""  # why\n'
    assert size_of(text) == (7, 3)


def test_a_station_of_the_way_that_is_gone_is_named(monkeypatch):
    monkeypatch.setattr(package_picture, "WAY", (("controller.decide", "no_such_module", ""),))
    with pytest.raises(ValueError, match=r"controller\.decide\.no_such_module"):
        package_picture.package_picture()


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("lists anew", 1),
        ("`anew` is quoted", 0),
        ("word " * 21, 1),
        ("| " + "word " * 21, 0),
        ("![" + "word " * 21 + "](x.svg)", 0),
        ("x" * 101, 0),
    ],
)
def test_prose_of_documents_is_short_and_plain(line, found):
    assert len(list(conventions._bad_prose("docs/x.md", 1, line))) == found


@pytest.mark.parametrize(
    ("name", "line", "found"),
    [
        ("controller/cli/x.py", "from controller.decide import x", None),
        ("controller/cli/x.py", "from controller.decide import c", "c in controller.cli.x"),
        (
            "controller/cli/x.py",
            "from controller.decide.c import x",
            "controller.decide.c in controller.cli.x",
        ),
        ("controller/cli/x.py", "from controller.rules.d import anything", None),
        ("controller/gangs/e/x.py", "from controller.decide.c import x", None),
        ("controller/reconcile/e/x.py", "from controller.reconcile.f.g import y", "y in controller.reconcile.e.x"),
        ("controller/reconcile/f/x.py", "from controller.reconcile.f.g import y", None),
        ("controller/cli/x.py", "from controller.views.h import x", None),
        ("controller/cli/x.py", "from controller.views.h.i import y", "y in controller.cli.x"),
    ],
)
def test_who_is_outside_imports_the_faces_of_packages(name, line, found, monkeypatch):
    texts = {
        "controller/decide/__init__.py": "from controller.decide.c import x\n",
        "controller/decide/c.py": "x = 1\n",
        "controller/rules/d.py": "anything = 1\n",
        "controller/reconcile/f/__init__.py": "from controller.reconcile.f.g import z\n",
        "controller/reconcile/f/g.py": "y = z = 1\n",
        "controller/views/h/__init__.py": "from controller.views.h.i import x\n",
        "controller/views/h/i.py": "x = y = 1\n",
        name: f"{line}\n",
    }
    monkeypatch.setattr(conventions, "modules", lambda: ((name, text, ast.parse(text)) for name, text in texts.items()))
    past = [each for imports in conventions.imports_past_a_face().values() for each in imports]
    assert past == ([found] if found else [])
