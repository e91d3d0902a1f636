from __future__ import annotations

import pytest

from pyservice.edge.http_messages import HttpResponse, Request
from pyservice.edge.static_document import StaticDocument
from pyservice.errors import ServiceError
from pyservice.transport.client_address import LOCAL

RAY_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
BODY = b'{"openapi": "3.1.1"}'


@pytest.fixture
def published() -> StaticDocument:
    return StaticDocument(b"/openapi.json", BODY)


def ask(published: StaticDocument, method: str = "GET", **headers: str) -> HttpResponse:
    fields = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return published.answer(Request(method, published.path, b"", fields, LOCAL))


def headers_of(answer: HttpResponse) -> dict[bytes, bytes]:
    return dict(answer.header_list(RAY_ID))


def test_document_has_an_etag(published: StaticDocument) -> None:
    answer = ask(published)
    assert (answer.status, answer.body) == (200, BODY)
    headers = headers_of(answer)
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"etag"] == published.etag
    assert headers[b"x-ray-id"] == RAY_ID.encode()


@pytest.mark.parametrize("form", ["{}", "W/{}", '"other", {}', "*"])
def test_matching_etag_returns_304(published: StaticDocument, form: str) -> None:
    answer = ask(published, if_none_match=form.format(published.etag.decode()))
    assert answer.status == 304
    headers = headers_of(answer)
    assert headers[b"etag"] == published.etag
    assert b"content-length" not in headers
    assert answer.body == b""


def test_different_etag_returns_the_document(published: StaticDocument) -> None:
    assert ask(published, if_none_match='"another"').status == 200


def test_different_documents_have_different_etags() -> None:
    assert StaticDocument(b"/a", b"1").etag != StaticDocument(b"/a", b"2").etag


def test_options_has_no_content(published: StaticDocument) -> None:
    answer = ask(published, "OPTIONS")
    assert (answer.status, answer.body) == (204, b"")
    assert headers_of(answer) == {b"x-ray-id": RAY_ID.encode()}


def test_other_methods_are_rejected(published: StaticDocument) -> None:
    with pytest.raises(ServiceError) as refused:
        ask(published, "POST")
    assert refused.value.code == "METHOD_NOT_ALLOWED"
    assert refused.value.headers["allow"] == "GET, HEAD, OPTIONS"
