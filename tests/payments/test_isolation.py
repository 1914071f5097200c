"""One account never sees, changes or refers to what is another's, on any route there is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from payments.access.accounts import Accounts
from tests.payments.api_client import Api, start_api

pytestmark = pytest.mark.slow

CARD = {"card[number]": "4242424242424242", "card[exp_month]": "4", "card[exp_year]": "2030"}
WHOLE: dict[str, dict[str, Any]] = {
    "charges": {"amount": 900, "currency": "eur", "source": "tok_visa"},
    "payment_intents": {"amount": 900, "currency": "eur"},
    "refunds": {},
    "webhook_endpoints": {"url": "https://example.com", "enabled_events[]": "*"},
}
"""What creating one of these needs."""


class Theirs:
    """What one account has, and another account that asks for it."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.held = api.charge(2000, capture="false")["id"]
        said = {"amount": 900, "currency": "eur", "payment_method": "pm_card_visa"}
        customer = api.create("customers", {"payment_method": "pm_card_visa"})["id"]
        self.ids = {
            "charges": api.charge(2000)["id"],
            "customers": customer,
            "payment_intents": api.create("payment_intents", said)["id"],
            "payment_methods": api.get("payment_methods", customer=customer).json()["data"][0][
                "id"
            ],
            "refunds": api.create("refunds", {"charge": api.charge(700)["id"]})["id"],
            "tokens": api.create("tokens", CARD)["id"],
            "events": api.get("events").json()["data"][0]["id"],
            "webhook_endpoints": api.create("webhook_endpoints", WHOLE["webhook_endpoints"])["id"],
        }
        _, self.key = Accounts(api.database).create("somebody else")

    def ask(self, method: str, path: str, said: Any = None) -> Any:
        kind = "params" if method == "GET" else "data"
        headers = {"authorization": f"Bearer {self.key}"}
        options: dict[str, Any] = {} if method == "DELETE" else {kind: said or {}}
        return self.api.client.request(method, path, headers=headers, **options)

    def everything(self) -> list[Any]:
        """All that the owner can see."""
        paths = [kind for kind in self.ids if kind != "tokens"]
        return [self.api.get(path, limit=100).json() for path in paths]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theirs]:
    with start_api(tmp_path_factory.mktemp("isolation")) as api:
        yield Theirs(api)


def routes(theirs: Theirs) -> list[tuple[str, str]]:
    paths = theirs.api.client.get("/openapi.json").json()["paths"]
    return [(method.upper(), path) for path, methods in paths.items() for method in methods]


def test_every_route_to_one_object_is_a_404_to_others(theirs: Theirs) -> None:
    before, asked = theirs.everything(), 0
    for method, path in routes(theirs):
        if "{id}" not in path:
            continue
        kind = path.split("/")[2]
        said: dict[str, Any] = {}
        if path.endswith("/attach"):
            headers = {"authorization": f"Bearer {theirs.key}"}
            mine = theirs.api.client.post("/v1/customers", headers=headers).json()["id"]
            said = {"customer": mine}
        answer = theirs.ask(method, path.replace("{id}", theirs.ids[kind]), said)
        assert (answer.status_code, method, path) == (404, method, path), answer.text
        asked += 1
    assert asked >= 25
    assert theirs.everything() == before
    assert theirs.api.get(f"charges/{theirs.held}").json()["captured"] is False


def test_every_list_of_others_is_empty_and_has_no_cursor_of_ours(theirs: Theirs) -> None:
    for method, path in routes(theirs):
        if method != "GET" or "{id}" in path or path == "/v1/balance":
            continue
        kind = path.split("/")[2]
        if kind not in ("customers", "events"):  # the test above made some
            assert theirs.ask("GET", path).json()["data"] == [], path
        for name in ("starting_after", "ending_before"):
            answer = theirs.ask("GET", path, {name: theirs.ids[kind]})
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, name), path
    assert theirs.ask("GET", "/v1/balance").json()["available"][0]["amount"] == 0


@pytest.mark.parametrize(
    ("path", "name", "kind"),
    [
        ("charges", "customer", "customers"),
        ("charges", "source", "tokens"),
        ("charges", "source", "payment_methods"),
        ("payment_intents", "customer", "customers"),
        ("payment_intents", "payment_method", "payment_methods"),
        ("refunds", "charge", "charges"),
        ("refunds", "payment_intent", "payment_intents"),
        ("customers", "source", "tokens"),
        ("customers", "payment_method", "payment_methods"),
        ("payment_methods", "card[token]", "tokens"),
    ],
)
def test_no_parameter_refers_to_what_is_anothers(
    theirs: Theirs, path: str, name: str, kind: str
) -> None:
    before = theirs.everything()
    said = WHOLE.get(path, {}) | {name: theirs.ids[kind]}
    said |= {"type": "card"} if path == "payment_methods" else {}
    answer = theirs.ask("POST", f"/v1/{path}", said)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
    assert theirs.everything() == before
    assert theirs.api.get(f"tokens/{theirs.ids['tokens']}").json()["used"] is False


def test_one_key_means_one_thing_for_each_account(theirs: Theirs) -> None:
    said = WHOLE["charges"]
    mine = theirs.api.post("charges", said, "same-key")
    _, key = Accounts(theirs.api.database).create("a third one")
    headers = {"authorization": f"Bearer {key}", "idempotency-key": "same-key"}
    other = theirs.api.client.post("/v1/charges", data=said, headers=headers)
    assert (mine.status_code, other.status_code) == (200, 200)
    assert "idempotent-replayed" not in other.headers
    assert mine.json()["id"] != other.json()["id"]
