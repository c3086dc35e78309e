"""L6: nobody sends a process of ours to sleep for longer than 30 s, whatever Retry-After says."""

import pytest
from multidict import CIMultiDict

from hami_dra.kube import transport


class Answer:
    def __init__(self, header, status=429):
        self.status = status
        self.headers = CIMultiDict({"Retry-After": header} if header is not None else {})


def in_status(seconds):
    return b'{"kind":"Status","details":{"retryAfterSeconds":%d}}' % seconds


@pytest.mark.parametrize(
    ("header", "body", "seconds"),
    [
        ("2", b"", 2.0),
        ("86400", b"", 30.0),
        ("9" * 5_000, b"", 30.0),
        ("\u0663", b"", 0.0),
        ("-5", b"", 0.0),
        (None, in_status(3), 3.0),
        (None, in_status(10**9), 30.0),
        (None, in_status(-7), 0.0),
        (None, b"[" * 9_990 + b"]" * 9_990, 0.0),
    ],
)
def test_the_pause_is_at_most_half_a_minute(header, body, seconds):
    assert transport.retry_after(Answer(header), body) == seconds
