from http import HTTPStatus
from typing import Any

import pytest

from oncekey._core.answer import answer_of
from oncekey._core.record import Answer
from oncekey.errors import Misuse

JSON = (b"content-type", b"application/json")


@pytest.mark.parametrize(
    "headers",
    [
        [(b"location", b"/orders/1")],
        [("Location", "/orders/1")],
        {"Location": "/orders/1"},
        {"Location": b"/orders/1"},
    ],
)
def test_headers_are_pairs_or_a_mapping_of_texts(headers: Any) -> None:
    assert answer_of(201, b"", headers) == Answer(201, ((b"location", b"/orders/1"),), b"")


def test_a_body_that_is_not_bytes_is_json_and_says_so() -> None:
    assert answer_of(HTTPStatus.CREATED, {"id": 1}) == Answer(201, (JSON,), b'{"id":1}')
    named = {"Content-Type": "application/vnd.shop+json"}
    assert answer_of(201, [], named).headers == ((b"content-type", b"application/vnd.shop+json"),)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (("201",), "status is a number from 200 to 599, not '201'"),
        ((99,), "status is a number from 200 to 599, not 99"),
        ((201, object()), "body is bytes, or what JSON can write"),
        ((201, b"", {"x-count": 5}), "headers are names, and texts .* not 5"),
        ((201, b"", {"x-price": "5 €"}), "texts of one line in Latin-1"),
        ((201, b"", {"x-price": "5\r\nx-free: yes"}), "texts of one line in Latin-1"),
        ((201, b"", [("prix réduit", "5")]), "headers are names"),
    ],
)
def test_parts_that_no_answer_can_have_are_refused(parts: tuple[Any, ...], said: str) -> None:
    with pytest.raises(Misuse, match=said):
        answer_of(*parts)
