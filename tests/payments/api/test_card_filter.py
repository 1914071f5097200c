"""Only known cards come in: no other number is written anywhere, not for a moment."""

from __future__ import annotations

from typing import Any

import pytest

from payments.api.card_filter import contains_card_number
from tests.payments.api_client import Api

PRICE = {"amount": 500, "currency": "usd"}
EXPIRY = {"exp_month": 1, "exp_year": 2030}


def files_with(api: Api, number: str) -> list[str]:
    """The files that hold this number: the database, and its log, where all that was ever
    committed stays for a while.
    """
    files = api.settings.data.iterdir()
    return [file.name for file in files if number.encode() in file.read_bytes()]


@pytest.mark.parametrize(
    ("path", "said", "param"),
    [
        ("charges", {**PRICE, "source": {"number": "{}", **EXPIRY}}, "source[number]"),
        ("charges", {**PRICE, "source": "{}"}, "source"),
        ("charges", {**PRICE, "card": "{}"}, "card"),
        ("tokens", {"card": {"number": "{}", **EXPIRY}}, "card[number]"),
        (
            "payment_intents",
            {
                **PRICE,
                "confirm": True,
                "payment_method_data": {"type": "card", "card": {"number": "{}", **EXPIRY}},
            },
            "payment_method_data[card][number]",
        ),
        ("payment_methods/pm_card_visa/attach", {"customer": "x", "number": "{}"}, "number"),
        ("charges", {**PRICE, "source": ["{}"]}, "source[0]"),
        ("charges", {**PRICE, "cards": [{"cvc": "123"}, {"number": "{}"}]}, "cards[1][number]"),
        ("charges", {**PRICE, "source": {"card_number": "{}"}}, "source[card_number]"),
    ],
)
def test_p12_a_number_that_is_not_known_is_written_nowhere(
    api: Api, path: str, said: dict[str, Any], param: str
) -> None:
    number = f"4{len(param):02}{len(path):02}88888881881"
    for refused in (
        api.post(path, flat(fill(said, number))),
        api.post_json(path, fill(said, number)),
    ):
        error = refused.json()["error"]
        assert refused.status_code == 400
        assert (error["code"], error["param"]) == ("incorrect_number", param)
        assert number not in refused.text
    assert files_with(api, number) == []


def test_one_that_is_written_with_spaces_is_found_in_what_cannot_be_read_too(api: Api) -> None:
    typed = {"source[number]": "4929 1234 5678 9012", "source[exp_month]": "%"}
    assert api.post("charges", PRICE | typed).json()["error"]["param"] == "source[number]"
    for kind, body in (
        ("application/x-www-form-urlencoded", b"source[number]=4929123456789012&%ff=%ff"),
        ("application/json", b'{"source": {"number": "4929123456789012"}'),
        ("text/xml", b"<number>4929123456789012</number>"),
    ):
        headers = {"content-type": kind}
        assert api.client.post("/v1/charges", content=body, headers=headers).status_code == 400
    assert files_with(api, "4929123456789012") == []
    assert files_with(api, "4929+1234+5678+9012") == []


def test_p12_one_in_the_url_is_written_nowhere_either(api: Api) -> None:
    error = api.post("charges?source=4929123456789014", PRICE).json()["error"]
    assert (error["type"], error["param"]) == ("invalid_request_error", "source")
    assert files_with(api, "4929123456789014") == []


@pytest.mark.parametrize(
    ("path", "said", "key", "param"),
    [
        ("charges/{}/capture", {}, None, None),
        ("nowhere/cus_{}", {}, None, None),
        ("charges", PRICE | {"{}": "1"}, None, None),
        ("charges", PRICE | {"source[{}]": "1"}, None, "source"),
        ("charges", PRICE | {"source[name]": "Ada {}"}, None, "source[name]"),
        ("charges", PRICE | {"card_number": "{}"}, None, "card_number"),
        ("charges", PRICE | {"customer": "{}"}, None, "customer"),
        ("charges", PRICE | {"source": "tok_visa", "expand[]": "{}"}, None, "expand[0]"),
        ("charges", PRICE | {"source": "tok_visa"}, "{}", None),
        ("customers", {"name": "Ada"}, "{}-500-usd", None),
        ("customers", {"name": "Ada"}, '"pay:{}"', None),
    ],
)
def test_p12_nor_is_one_where_nobody_looks_for_it(
    api: Api, path: str, said: dict[str, Any], key: str | None, param: str | None
) -> None:
    [number] = [
        number
        for digit in range(10)
        if contains_card_number(
            number := f"4{len(str(said)):03}{len(path):03}{len(key or ''):03}71881{digit}"
        )
    ]
    said = {name.format(number): str(value).format(number) for name, value in said.items()}
    refused = api.post(path.format(number), said, key and key.format(number))
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "incorrect_number")
    assert error.get("param") == param
    assert number not in refused.text
    assert files_with(api, number) == []


@pytest.mark.parametrize(
    "typed",
    ["4929.1234.5678.9013", "4929\u00a01234\u00a05678\u00a09013", "4929\u20111234 56789013\t"],
)
def test_however_it_is_typed_or_copied_it_is_written_nowhere(api: Api, typed: str) -> None:
    wrong = {**PRICE, "source": {"number": typed, **EXPIRY, "cvc": "718293"}}
    for refused in (api.post("charges", flat(wrong)), api.post_json("charges", wrong)):
        assert refused.json()["error"]["code"] == "incorrect_number"
    assert files_with(api, "718293") == []


def test_other_long_numbers_are_no_cards(api: Api) -> None:
    said: dict[str, Any] = PRICE | {"source": "tok_visa"}
    said |= {"description": "not by 4111111111111111"}
    made = api.create("charges", said | {"metadata[number]": "4111 1111 1111 1111"})
    assert made["metadata"] == {"number": "4111 1111 1111 1111"}
    said = {"name": "4111111111111111", "phone": "4222222222222"}
    assert (
        api.create("customers", said | {"metadata[4111111111111111]": "x"})["name"] == said["name"]
    )
    too_much = api.post("charges", PRICE | {"amount": "1" * 16}).json()["error"]
    assert (too_much["code"], too_much["param"]) == ("amount_too_large", "amount")
    typed = {"source[number]": "4242-4242-4242-4242", "source[exp_month]": 1}
    assert api.create("charges", PRICE | typed | {"source[exp_year]": 2034})["paid"]


def test_its_key_stays_unused(api: Api) -> None:
    wrong = PRICE | {"source": "4929123456789999"}
    assert api.post("charges", wrong, "known-cards").status_code == 400
    assert api.post("charges", PRICE | {"source": "tok_visa"}, "known-cards").status_code == 200


def fill(said: Any, number: str) -> Any:
    """With a number in the place that waits for it."""
    if isinstance(said, dict):
        return {name: fill(value, number) for name, value in said.items()}
    if isinstance(said, list):
        return [fill(value, number) for value in said]
    return number if said == "{}" else said


def flat(said: Any, within: str = "") -> dict[str, Any]:
    """As a form writes it."""
    if not isinstance(said, dict | list):
        return {within: said}
    made: dict[str, Any] = {}
    for name, value in said.items() if isinstance(said, dict) else enumerate(said):
        made |= flat(value, f"{within}[{name}]" if within else str(name))
    return made
