import pytest

from oncekey import LeaseLost, StoreUnavailable
from payments.api import schemas
from tests.payments.api_client import Api


def test_every_error_has_stripes_shape_and_a_request_id(api: Api) -> None:
    answers = [
        api.get("charges/ch_nobody"),
        api.get("nothing"),
        api.client.put("/v1/charges"),
        api.post("charges", {"surprise": 1}),
        api.client.post("/v1/charges", content=b"{", headers={"content-type": "application/json"}),
        api.client.post("/v1/charges", content=b"[]", headers={"content-type": "application/json"}),
        api.client.post("/v1/charges", content=b"<a/>", headers={"content-type": "text/xml"}),
        api.client.post("/v1/charges", headers={"authorization": "Bearer sk_test_wrong"}),
        api.client.post("/v1/charges?amount=5"),
        api.client.post("/v1/charges", headers={"idempotency-key": "x" * 256}),
    ]
    for answer in answers:
        assert 400 <= answer.status_code < 500
        schemas.Error.model_validate(answer.json())
        assert answer.headers["request-id"].startswith("req_")
        assert answer.headers["content-type"] == "application/json"


@pytest.mark.parametrize("kind", ["charges", "customers", "payment_intents"])
def test_a_search_is_told_that_there_is_none(api: Api, kind: str) -> None:
    answer = api.get(f"{kind}/search", query="amount>100", limit=3)
    assert answer.status_code == 404
    assert f"Unrecognized request URL (GET: /v1/{kind}/search)" in answer.text


def test_json_that_no_database_takes_is_refused(api: Api) -> None:
    for text in (r'"a\u0000b"', r'"\ud800"', "NaN", "[" * 20 + "]" * 20):
        body = b'{"amount": 500, "currency": "usd", "description": %s}' % text.encode()
        answer = api.client.post(
            "/v1/charges", content=body, headers={"content-type": "application/json"}
        )
        assert answer.status_code == 400, text


def test_a_wrong_key_says_so_before_anything_is_done(api: Api) -> None:
    before = api.count("charges")
    said = {"amount": 500, "currency": "usd", "source": "tok_visa"}
    answer = api.client.post("/v1/charges", data=said, headers={"authorization": "Bearer sk_no"})
    assert answer.status_code == 401
    assert api.count("charges") == before


def test_what_nobody_foresaw_is_told_as_our_error_and_can_be_retried(api: Api) -> None:
    said = {"amount": 500, "currency": "usd", "source": "tok_visa"}
    authorise = api.network.authorise
    api.network.authorise = None  # type: ignore[assignment, method-assign]
    failed = api.post("charges", said, "unforeseen")
    assert (failed.status_code, failed.json()["error"]["type"]) == (500, "api_error")
    schemas.Error.model_validate(failed.json())
    assert failed.headers["request-id"].startswith("req_")
    api.network.authorise = authorise  # type: ignore[method-assign]
    again = api.post("charges", said, "unforeseen")
    assert again.status_code == 200
    assert "idempotent-replayed" not in again.headers


@pytest.mark.parametrize("raised", [LeaseLost("taken over"), StoreUnavailable("down")])
def test_what_another_attempt_or_time_puts_right_is_to_be_retried(
    api: Api, raised: Exception
) -> None:
    said = {"amount": 500, "currency": "usd", "source": "tok_visa"}
    authorise = api.network.authorise

    def fails(**_: object) -> None:
        raise raised

    api.network.authorise = fails  # type: ignore[assignment, method-assign]
    failed = api.post("charges", said, f"again-{type(raised).__name__}")
    api.network.authorise = authorise  # type: ignore[method-assign]
    assert (failed.status_code, failed.json()["error"]["type"]) == (503, "api_error")
    assert "Retry with the same Idempotency-Key" in failed.json()["error"]["message"]
    assert api.post("charges", said, f"again-{type(raised).__name__}").status_code == 200
