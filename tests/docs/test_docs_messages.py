"""Messages that the documents quote are messages of the code: each clause is one that a string literal of the code can
produce, or that another test expects.
"""

import ast
import re
from functools import cache

import pytest
import yaml

from tests.docs.commands_in_docs import ROOT

PAGES = ("README.md", "docs/troubleshooting.md", "docs/events.md", "docs/gangs.md", "docs/quota.md", "docs/operations.md", "docs/metrics.md")  # fmt: skip
OF_OTHERS = ("failed calling webhook", "FailedResourceClaimCreation")
"""Of the API server and of kube-controller-manager."""
ANY = "\0"
"""What a message fills in, and what a quote leaves out (`...`)."""
_CLAUSES = re.compile(r"[;:.,] | \[|\]$|, |(?<=[a-z]) \(|\)$")
_EVENT = re.compile(r"^ *(?:Normal|Warning) +\w+ +\S+ +(.*)$", re.MULTILINE)


def quotes(text):
    """Sentences in backticks, and the messages of events in output that is shown."""
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]
    sentences = [span for span in spans if span.count(" ") > 1 and re.match(r"[a-z\d]", span)]
    sentences = [
        span for span in sentences if not re.match(r"(hami-dra|kubectl|helm|make|jq) |[\w./]+: \S+$|.*=.*=", span)
    ]
    return [*sentences, *_EVENT.findall(text)]


def clauses_of(text):
    """The parts of a sentence that have words: `no node fits now`, `needs 4 whole devices`."""
    parts = (part.strip() for part in _CLAUSES.split(text.replace("...", ANY)))
    return [part for part in parts if len(words_of(part)) > 1]


def words_of(text):
    return set(re.findall(r"[A-Za-z]{2,}", text.replace(ANY, " 0 ")))


def strings_in(path):
    """All string literals of a module, with `ANY` where something is filled in."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) if isinstance(part, ast.Constant) else ANY for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def printed_by(expression):
    """The text that a CEL expression prints, with `ANY` for what is no literal.

    >>> printed_by("'a: ' + variables.names + ' must not ' + 'stay'")
    'a: \\x00 must not stay'
    """
    texts = re.split(r"'((?:[^'\\\\]|\\\\.)*)'", expression)
    return "".join(text if number % 2 else ANY * bool(text.strip(" +\n")) for number, text in enumerate(texts))


@cache
def literals():
    """Clauses of the product's string literals and of its policies, each with its words."""
    found = {
        text for top in ("hami_dra", "controller") for path in (ROOT / top).rglob("*.py") for text in strings_in(path)
    }
    for path in (ROOT / "manifests").glob("*-policy.yaml"):
        for document in yaml.safe_load_all(path.read_text()):
            for each in (document or {}).get("spec", {}).get("validations", ()):
                found |= {each.get("message", ""), printed_by(each.get("messageExpression", ""))}
    clauses = {clause for text in found if len(text) < 600 for clause in {text, *clauses_of(text)}}
    return [(clause, words_of(clause)) for clause in clauses]


@cache
def expected():
    """What other tests expect: their string literals and the events of tests/fixtures/mistakes, all figures as 0."""
    units = ("allocation", "decide", "gangs", "inventory", "rules", "scoring", "reconcile")
    folders = (*(ROOT / "tests/unit" / name for name in units), ROOT / "tests/e2e")
    texts = [text for folder in folders for path in folder.rglob("*.py") for text in strings_in(path)]
    texts += [path.read_text() for path in (ROOT / "tests/fixtures/mistakes").rglob("*") if path.is_file()]
    return re.sub(r"\d+", "0", " ".join("\n".join(texts).split()))


def meet(one, other):
    """Tell whether some text fits both patterns, in which `ANY` stands for anything.

    >>> meet("the largest has \\0 MiB (\\0)", "the largest has 23028 MiB (NVIDIA A10G)")
    True
    """
    reached = {(0, 0)}
    waiting = [(0, 0)]
    while waiting:
        i, j = waiting.pop()
        if (i, j) == (len(one), len(other)):
            return True
        left, right = one[i : i + 1], other[j : j + 1]
        steps = []
        if left == ANY:
            steps += [(i + 1, j), (i, j + 1)]
        if right == ANY:
            steps += [(i, j + 1), (i + 1, j)]
        if left and left == right:
            steps.append((i + 1, j + 1))
        for step in steps:
            if step not in reached and step[0] <= len(one) and step[1] <= len(other):
                reached.add(step)
                waiting.append(step)
    return False


def is_said(clause):
    """Tell whether the code says it. Half of the clause's words must stand in the literal itself."""
    words = words_of(clause)
    near = (literal for literal, its in literals() if len(words & its) * 2 >= len(words))
    if any(meet(pattern, clause) for literal in near for pattern in (literal, ANY + literal, literal + ANY)):
        return True
    figures = re.sub(r"\d+", "0", clause).strip(ANY + " ")
    return figures in expected()


@pytest.mark.parametrize("page", PAGES)
def test_messages_are_quoted_as_they_are(page):
    found = [quote for quote in quotes((ROOT / page).read_text()) if not quote.startswith(OF_OTHERS)]
    assert {clause for quote in found for clause in clauses_of(quote) if not is_said(clause)} == set()


def test_there_are_quotes():
    found = {page: len(quotes((ROOT / page).read_text())) for page in PAGES}
    assert found["docs/events.md"] > 15
    assert found["docs/troubleshooting.md"] > 2


@pytest.mark.parametrize(
    "clause", ["the biggest has 23028 MiB", "no node is fitting now", "3 of 4 members are fitting"]
)
def test_words_that_no_message_has_are_noticed(clause):
    assert not is_said(clause)
