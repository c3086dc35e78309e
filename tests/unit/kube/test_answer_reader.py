"""AnswerReader: HTTP answers in every framing, cut anywhere."""

import pytest

from hami_dra.kube.answer_reader import AnswerReader, EndedEarly, HttpAnswer, NotHttp

LONG = b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 11\r\n\r\nhello world"
CHUNKED = (
    b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\nA;name=value\r\n\r\n world\r\n\r\n0\r\n\r\n"
)
TRAILERS = CHUNKED[:-2] + b"Expires: never\r\nX: y\r\n\r\n"
BUSY = b"HTTP/1.1 429 Too Many Requests\r\nretry-after:  7 \r\nCONNECTION: Close\r\ncontent-length: 2\r\n\r\n{}"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nContent-Length: 9\r\n\r\n" + LONG
NOTHING = b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\n"
EMPTY = b"HTTP/1.1 200 \r\nContent-Length: 0\r\n\r\n"
OLD = b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}"

WHOLE = [
    (LONG, HttpAnswer(200, b"hello world", "", is_last=False)),
    (CHUNKED, HttpAnswer(201, b"hello\r\n world\r\n", "", is_last=False)),
    (TRAILERS, HttpAnswer(201, b"hello\r\n world\r\n", "", is_last=False)),
    (BUSY, HttpAnswer(429, b"{}", "7", is_last=True)),
    (INTERIM, HttpAnswer(200, b"hello world", "", is_last=False)),
    (NOTHING, HttpAnswer(204, b"", "", is_last=False)),
    (EMPTY, HttpAnswer(200, b"", "", is_last=False)),
    (OLD, HttpAnswer(200, b"{}", "", is_last=True)),
]


def fed(*pieces):
    """What each piece leads to."""
    reader = AnswerReader()
    return [reader.feed(piece) for piece in pieces]


@pytest.mark.parametrize(("text", "answer"), WHOLE)
def test_an_answer_may_be_cut_anywhere(text, answer):
    for first in range(len(text)):
        for second in {min(first + 1, len(text)), (first + len(text)) // 2}:
            *others, last = (
                fed(text[:first], text[first:second], text[second:]) if second < len(text) else [None, *fed(text)]
            )
            assert (others.count(None), last) == (len(others), answer), (first, second)


def test_byte_by_byte():
    for text, answer in WHOLE:
        assert fed(*(text[at : at + 1] for at in range(len(text)))) == [None] * (len(text) - 1) + [answer]


def test_a_body_without_length_lasts_until_the_end():
    reader = AnswerReader()
    assert [reader.feed(piece) for piece in (b"HTTP/1.1 200 OK\r\n\r\n", b"hello ", b"world")] == [None] * 3
    assert reader.end() == HttpAnswer(200, b"hello world", "", is_last=True)


def test_bytes_that_nobody_asked_for_end_the_connection():
    assert fed(LONG + b"HTTP/1.1 200 OK\r\n")[0].is_last


@pytest.mark.parametrize("text", [LONG[:-1], LONG[:20], CHUNKED[:-2], CHUNKED[:60], b"HTTP/1.1 100 Continue\r\n\r\nH"])
def test_an_end_in_the_middle_is_told(text):
    reader = AnswerReader()
    assert reader.feed(text) is None
    with pytest.raises(EndedEarly):
        reader.end()


def test_an_end_before_the_first_byte_is_a_closed_connection():
    with pytest.raises(ConnectionResetError):
        AnswerReader().end()


@pytest.mark.parametrize(
    "text",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 20 OK\r\n\r\n",
        b"x" * 70_000,
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000,
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1e3\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"x" * 70_000,
    ],
)
def test_what_is_no_http_is_refused(text):
    with pytest.raises(NotHttp):
        fed(text)


def test_a_long_body_is_not_copied_again_and_again():
    """Each piece is kept as it came: fed in 64 KiB, 32 MiB take milliseconds."""
    piece = b"x" * 65_536
    reader = AnswerReader()
    reader.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % (512 * len(piece)))
    for _ in range(512):
        assert reader.feed(piece) is None
    assert len(reader._unread) == 0
    assert len(reader.feed(b"\r\n0\r\n\r\n").body) == 512 * len(piece)
