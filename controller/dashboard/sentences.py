"""Sentences about refused pods in another language: recognized by their parts, translated part by part.

Used by `text.Texts.sentence`. A part that no pattern fits stays as it is: names, figures, and what
kube-scheduler's plugins say. Pure.
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from controller.dashboard.chinese_sentences import FRAME, PARTS

_SENTENCE: Final = re.compile(
    r"(?:(?P<owner>(?:gang|PodGroup) [^:]*|PodGroup \([^)]*\) [^:]*): )?"
    r"(?:(?P<head>no node fits(?: now)?): (?:(?P<request>request [^ :]+(?: of ResourceClaim [^ :]+)?): )?)?"
    r"(?P<body>.*?)(?:, (?P<never>so it never will))?",
    re.DOTALL,
)
_ENDS: Final = re.compile(r"(; |\. (?=[A-Z])|$)")
_COMMA: Final = "\N{FULLWIDTH COMMA}"
_MARKS: Final = {"; ": "\N{FULLWIDTH SEMICOLON}", ". ": "\N{IDEOGRAPHIC FULL STOP}", "": ""}
_COLON: Final = "\N{FULLWIDTH COLON}"
_NESTED: Final = "part"


@lru_cache(maxsize=2_048)
def chinese(sentence: str) -> str:
    """Return the sentence in Chinese. Unknown parts stay; without a known part, all of it does."""
    found = _SENTENCE.fullmatch(sentence)
    assert found is not None  # the body may be anything
    pieces = _ENDS.split(found["body"])
    parts, marks = [_part(piece) for piece in pieces[::2]], pieces[1::2]
    if not found["head"] and parts == pieces[::2]:
        return sentence
    heads = [found["owner"], FRAME[found["head"]] if found["head"] else "", _part(found["request"] or "")]
    body = "".join(part + _MARKS[mark] for part, mark in zip(parts, marks, strict=False))
    text = _COLON.join([*filter(None, heads), body])
    return f"{text}{_COMMA}{FRAME[found['never']]}" if found["never"] else text


def _part(text: str) -> str:
    for pattern, translation in _PATTERNS:
        if (found := pattern.fullmatch(text)) is not None:
            values = {
                name: _part(value) if name.startswith(_NESTED) else value for name, value in found.groupdict().items()
            }
            return translation.format(**values)
    return text


def _compiled(parts: Mapping[str, str]) -> Iterable[tuple[re.Pattern[str], str]]:
    """Yield each pattern as a regular expression; its texts are as short as possible."""
    for pattern, translation in parts.items():
        pieces = re.split(r"\{(\w+)\}", pattern)
        expression = "".join(
            rf"(?P<{piece}>{_COUNT if piece == 'count' else _TEXT})" if number % 2 else re.escape(piece)
            for number, piece in enumerate(pieces)
        )
        yield re.compile(expression, re.DOTALL), translation


_COUNT: Final = r"\d+"
_TEXT: Final = r".+?"
_PATTERNS: Final = tuple(_compiled(PARTS))
