from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyservice.edge import woken_batch_format
from pyservice.edge.forwarding_headers import RequestKey
from pyservice.edge.http_messages import JSON, PROBLEM, HttpResponse
from pyservice.edge.unix_http_client import Reply
from pyservice.edge.woken_batch_format import WokenRequest

_BYTES = st.binary(max_size=40)
_ASKED = st.builds(
    WokenRequest,
    st.builds(RequestKey, _BYTES, _BYTES, st.none() | _BYTES),
    st.ip_addresses().map(str),
    st.text(alphabet="0123456789abcdef-", max_size=55),
    st.booleans(),
)
_HEADERS = st.lists(st.tuples(st.sampled_from([b"retry-after", b"x-hosting-park"]), _BYTES))
_ANSWERS = st.builds(
    HttpResponse,
    st.sampled_from([200, 401, 503]),
    _BYTES,
    st.just("ray"),
    st.sampled_from([JSON, PROBLEM]),
    st.none() | _HEADERS.map(lambda fields: list(dict(fields).items())),
)


@given(st.lists(_ASKED, max_size=5))
def test_requests_round_trip(requests: list[WokenRequest]) -> None:
    assert woken_batch_format.read_requests(woken_batch_format.write_requests(requests)) == requests


_PARTS = st.lists(st.lists(st.tuples(st.integers(0, 200), _ANSWERS), max_size=4), max_size=4)


@given(_PARTS, st.integers(1, 200))
def test_responses_round_trip_in_any_chunks(
    parts: list[list[tuple[int, HttpResponse]]], piece_bytes: int
) -> None:
    written = b"".join(map(woken_batch_format.write_responses, parts))
    replies = woken_batch_format.WokenReplyReader()
    numbered: list[tuple[int, Reply]] = []
    for start in range(0, len(written), piece_bytes):
        numbered += replies.feed(written[start : start + piece_bytes])
    replies.end()
    answers = [one for part in parts for one in part]
    assert [(number, reply.status, reply.body) for number, reply in numbered] == [
        (number, answer.status, answer.body) for number, answer in answers
    ]
    for (_, reply), (_, answer) in zip(numbered, answers, strict=True):
        assert reply.fields == {b"content-type": answer.content_type, **dict(answer.headers or ())}


def test_part_is_available_when_it_is_complete() -> None:
    first, second = (
        woken_batch_format.write_responses([(n, HttpResponse(200, b"x", "ray"))]) for n in (0, 1)
    )
    replies = woken_batch_format.WokenReplyReader()
    assert [number for number, _ in replies.feed(first + second[:-1])] == [0]
    with pytest.raises(ValueError, match="truncated"):
        replies.end()
    assert [number for number, _ in replies.feed(second[-1:])] == [1]
    replies.end()


def test_shared_body_is_sent_once() -> None:
    body = b"x" * 1000
    written = woken_batch_format.write_responses(
        [(n, HttpResponse(200, body, "ray")) for n in range(50)]
    )
    assert len(written) < 3 * len(body)
    numbered = woken_batch_format.WokenReplyReader().feed(written)
    assert [(number, reply.body) for number, reply in numbered] == [(n, body) for n in range(50)]


@pytest.mark.parametrize(
    "body", [b"", b"{", b"1", b"[1]", b"[[1,2]]", b'[["GET","/",1,"","",false]]', b'{"a":1}']
)
def test_invalid_batch_is_rejected(body: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        woken_batch_format.read_requests(body)


@pytest.mark.parametrize(
    "body",
    [
        *(
            b"x",
            b"2 0\n[]",
            b"4 0\nnull",
            b'19 0\n[[[0,200,"",[],0]],[]]',
            b"999999999 1\n",
            b"1 \n",
        ),
        *(b"-5 5\n", b"x" * 30, b'21 1\n[[["a",200,"",[],0]],[1]]x'),
    ],
)
def test_invalid_responses_are_rejected(body: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        _read(body)


def _read(body: bytes) -> None:
    replies = woken_batch_format.WokenReplyReader()
    replies.feed(body)
    replies.end()
