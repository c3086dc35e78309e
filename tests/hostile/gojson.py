"""JSON as Go's encoding/json accepts and hands on in free-form parts: far more than most parsers of Python do.

Strategies of hypothesis that yield bytes. Every value is JSON to Go (RFC 8259, raw bytes in strings apart, which Go takes too), at
most 9,990 levels deep: the API server refuses 10,000.
"""

from hypothesis import strategies as st

DEPTHS = (1, 40, 60, 120, 1_200, 5_000, 9_990)
_OPENINGS = (b"[", b'{"a":', b'{"f:x":', b'[{},{"b":[1]},', b'{"]":"{","\\"[":', b'{"a":{},"A":')

ODD_STRINGS = (
    rb'"\ud800"',
    rb'"\udfff\ud800"',
    rb'"a\uD83D\uDE00b"',
    rb'"\ud83dx"',
    rb'"\\ud800"',
    rb'"\u0000"',
    b'"\xff\xfe"',
    b'"\xed\xa0\x80"',
    b'"\xc0\xaf"',
    b'"\xf4\x90\x80\x80"',
    b'"\x7f"',
    rb'"\\"',
    rb'"\"}]{["',
    rb'"},{\"metadata\":{\"name\":\"other\"}}"',
    rb'"\u2028</script>"',
    b'"' + b"x" * 20_000 + b'"',
)
ODD_NUMBERS = (
    b"1e400",
    b"-1E+999999",
    b"1e-99999",
    b"0." + b"1" * 500,
    b"9" * 400,
    b"-" + b"9" * 5_000,
    b"18446744073709551616",
    b"9223372036854775807",
    b"-0.0",
)


@st.composite
def nested(draw):
    """A chain of containers, each of them with something beside it."""
    depth = draw(st.sampled_from(DEPTHS))
    opening = draw(st.sampled_from(_OPENINGS))
    closing = b"]" if opening.startswith(b"[") else b"}"
    inner = draw(st.sampled_from((b"{}", b"[]", b"0", *ODD_STRINGS[:4])))
    return opening * depth + inner + closing * depth


def strings():
    return st.sampled_from(ODD_STRINGS)


def values():
    """Any value."""
    leaves = st.one_of(strings(), st.sampled_from((*ODD_NUMBERS, b"null", b"true", b"[]", b"{}")), nested())
    return st.recursive(
        leaves, lambda inner: st.one_of(st.lists(inner, max_size=3).map(_array), objects(inner)), max_leaves=4
    )


def objects(inner):
    """With keys that are given twice, in other cases, or are no text."""
    keys = st.sampled_from((b'"a"', b'"A"', b'"metadata"', b'"Metadata"', rb'"\ud800"', b'"\xff"', rb'"\u0061"', b'""'))
    return st.lists(st.tuples(keys, inner), max_size=4).map(_object)


def _array(items):
    return b"[" + b",".join(items) + b"]"


def _object(members):
    return b"{" + b",".join(key + b":" + value for key, value in members) + b"}"
