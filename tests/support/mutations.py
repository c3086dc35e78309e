"""Output of tools as it should not be: lines gone, doubled or swapped, the end cut off, bytes replaced by garbage."""

from hypothesis import strategies as st

MOST = 100_000
"""Characters; doubling grows."""
WORDS = [
    "N/A",
    "",
    "0",
    "-1",
    "9" * 30,
    "|",
    "\x00",
    "\x1b[31m",
    "\ufffd",
    "X",
    "GPU0",
    "<",
    ">",
    "&",
    '"',
    "'",
    "{",
    "[",
]
GARBAGE = st.one_of(st.sampled_from(WORDS), st.text(max_size=6))


def _delete(draw, lines, at):
    return lines[:at] + lines[at + draw(st.integers(1, 4)) :]


def _cut(draw, lines, at):
    return [*lines[:at], lines[at][: draw(st.integers(0, len(lines[at])))]]


def _double(draw, lines, at):
    return [*lines[: at + 1], *lines[at:]]


def _all_twice(draw, lines, at):
    return lines + lines


def _replace_word(draw, lines, at):
    words = lines[at].split(" ")
    words[draw(st.integers(0, len(words) - 1))] = draw(GARBAGE)
    return [*lines[:at], " ".join(words), *lines[at + 1 :]]


def _insert(draw, lines, at):
    place = draw(st.integers(0, len(lines[at])))
    return [*lines[:at], lines[at][:place] + draw(GARBAGE) + lines[at][place:], *lines[at + 1 :]]


def _swap(draw, lines, at):
    other = draw(st.integers(0, len(lines) - 1))
    swapped = list(lines)
    swapped[at], swapped[other] = lines[other], lines[at]
    return swapped


def _join(draw, lines, at):
    return [*lines[:at], lines[at].rstrip("\n"), *lines[at + 1 :]]


MISHAPS = [_delete, _cut, _double, _all_twice, _replace_word, _insert, _swap, _join]


@st.composite
def mutated(draw, texts):
    """One of the texts after one to six mishaps."""
    text = draw(st.sampled_from(texts))
    for mishap in draw(st.lists(st.sampled_from(MISHAPS), min_size=1, max_size=6)):
        lines = text.splitlines(keepends=True)
        if lines:
            text = "".join(mishap(draw, lines, draw(st.integers(0, len(lines) - 1))))[:MOST]
    return text
