"""Woken requests in one message: what is written is what is read, and nothing else is taken for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyservice.edge import crowds
from pyservice.edge.crowds import Asked
from pyservice.edge.exchanges import JSON, PROBLEM, Answer
from pyservice.edge.relayed import Wish

_BYTES = st.binary(max_size=40)
_ASKED = st.builds(
    Asked,
    st.builds(Wish, _BYTES, _BYTES, st.none() | _BYTES),
    st.ip_addresses().map(str),
    st.text(alphabet="0123456789abcdef-", max_size=55),
    st.booleans(),
)
_HEADERS = st.lists(st.tuples(st.sampled_from([b"retry-after", b"x-hosting-park"]), _BYTES))
_ANSWERS = st.builds(
    Answer,
    st.sampled_from([200, 401, 503]),
    _BYTES,
    st.just("ray"),
    st.sampled_from([JSON, PROBLEM]),
    st.none() | _HEADERS.map(lambda fields: list(dict(fields).items())),
)


@given(st.lists(_ASKED, max_size=5))
def test_requests_are_read_as_they_were_written(asked: list[Asked]) -> None:
    assert crowds.read_asked(crowds.write_asked(asked)) == asked


@given(st.lists(_ANSWERS, max_size=5))
def test_answers_are_read_as_they_were_written(answers: list[Answer]) -> None:
    replies = crowds.read_replies(crowds.write_answers(answers))
    assert [(reply.status, reply.body) for reply in replies] == [
        (answer.status, answer.body) for answer in answers
    ]
    for reply, answer in zip(replies, answers, strict=True):
        assert reply.fields == {b"content-type": answer.content_type, **dict(answer.headers or ())}


def test_a_body_that_several_have_in_common_is_sent_once() -> None:
    body = b"x" * 1000
    written = crowds.write_answers([Answer(200, body, "ray") for _ in range(50)])
    assert len(written) < 3 * len(body)
    assert [reply.body for reply in crowds.read_replies(written)] == [body] * 50


@pytest.mark.parametrize(
    "body", [b"", b"{", b"1", b"[1]", b"[[1,2]]", b'[["GET","/",1,"","",false]]', b'{"a":1}']
)
def test_what_is_no_message_is_not_read(body: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        crowds.read_asked(body)


@pytest.mark.parametrize(
    "body", [b"", b"x", b"2\n[]", b"4\nnull", b'13\n[[[200,"",[],0]],[]]', b"9999999999\n"]
)
def test_what_are_no_answers_is_not_read(body: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        crowds.read_replies(body)
