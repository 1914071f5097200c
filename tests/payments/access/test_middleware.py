"""The gate: who comes in, how often, with how much."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from oncekey import StoreUnavailable
from payments import clock
from payments.access.auth import KEYS_FRESH_S
from tests.payments.guarded_app import GuardedApp, rates
from tests.web.client import Reply

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

Make = Callable[..., GuardedApp]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    made: list[GuardedApp] = []

    def make(**settings: Any) -> GuardedApp:
        made.append(GuardedApp(tmp_path / "data", **settings))
        return made[-1]

    yield make
    for gated in made:
        await gated.close()


def error_of(reply: Reply) -> dict[str, Any]:
    error: dict[str, Any] = reply.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert error["message"]
    return error


# ----------------------------------------------------------------------------------- who it is


async def test_a_key_comes_as_bearer_or_as_the_user_of_basic(make: Make) -> None:
    gated = make()
    account, key = gated.accounts.create("Tea shop")
    basic = base64.b64encode(f"{key}:".encode())
    by_bearer = await gated.ask(key=key)
    by_basic = await gated.ask(key=None, headers=[(b"authorization", b"Basic " + basic)])
    assert by_bearer.json()["account"] == by_basic.json()["account"] == f"{account.id}/test"


@pytest.mark.parametrize(
    "line",
    [None, b"Bearer sk_test_wrong", b"Bearer", b"Bearer \xff", b"Basic !!!", b"Digest abc", b""],
)
async def test_whoever_has_no_valid_key_is_told_so_and_spends_nothing(
    make: Make, line: bytes | None
) -> None:
    gated = make()
    lines = [] if line is None else [(b"authorization", line)]
    reply = await gated.ask("k1", key=None, headers=lines)
    assert reply.status == 401
    assert error_of(reply)
    assert reply.header("www-authenticate") == 'Bearer realm="payments"'
    assert (reply.header("request-id") or "").startswith("req_")
    assert gated.runs == []
    assert await gated.state("k1") is None


async def test_two_authorization_headers_are_refused(make: Make) -> None:
    gated = make()
    reply = await gated.ask(headers=[(b"authorization", b"Bearer sk_test_other")])
    assert reply.status == 401


async def test_a_wrong_key_is_not_repeated_in_full(make: Make) -> None:
    reply = await make().ask(key="sk_test_AbCdEfGhIjKlMnOp")
    assert error_of(reply)["message"] == "Invalid API Key provided: sk_test_…MnOp"


async def test_e17_a_rotated_key_keeps_the_idempotency_of_the_old_one(make: Make) -> None:
    gated = make()
    account, old = gated.accounts.create("Tea shop")
    first = await gated.ask("k1", key=old)
    new = gated.accounts.rotate(account)
    by_old = await gated.ask("k1", key=old)
    by_new = await gated.ask("k1", key=new)
    assert by_old.replayed
    assert by_new.replayed
    assert first.body == by_old.body == by_new.body
    assert by_new.header("original-request") == first.header("request-id")
    assert by_new.header("request-id") not in (None, first.header("request-id"))
    assert len(gated.runs) == 1


async def test_e15_another_account_has_other_keys(make: Make) -> None:
    gated = make()
    (_, one), (_, other) = gated.accounts.create("One"), gated.accounts.create("Other")
    assert (await gated.ask("k1", key=one)).json()["run"] == 1
    assert (await gated.ask("k1", key=other)).json()["run"] == 2


@pytest.mark.parametrize("header", [b"stripe-account", b"stripe-context"])
async def test_p7_nothing_is_done_in_ones_own_name_that_is_meant_for_another(
    make: Make, header: bytes
) -> None:
    gated = make()
    account, key = gated.accounts.create("a platform")
    meant = await gated.ask("k", key=key, headers=[(header, b"acct_other")])
    assert (meant.status, meant.json()["error"]["code"]) == (403, "account_invalid")
    assert gated.runs == []
    own = await gated.ask("k", key=key, headers=[(header, account.id.encode())])
    assert (own.status, own.json()["account"]) == (200, account.tenant)


async def test_e19_test_and_live_are_apart(make: Make) -> None:
    gated = make()
    account, key = gated.accounts.create("Tea shop", "live")
    assert key.startswith("sk_live_")
    assert (await gated.ask(key=key)).json()["account"] == f"{account.id}/live"


async def test_a_revoked_key_ends_within_the_bound(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    gated = make()
    account, key = gated.accounts.create("Tea shop")
    now = clock.monotonic()
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    assert (await gated.ask("k1", key=key)).status == 200
    gated.accounts.revoke(account, key)
    assert (await gated.ask("k2", key=key)).status == 200  # still believed
    now += KEYS_FRESH_S
    for _ in range(2):
        reply = await gated.ask("k3", key=key)
        assert reply.status == 401
        assert error_of(reply)["code"] == "api_key_expired"
        assert key not in reply.body.decode()
    assert len(gated.runs) == 2


async def test_an_overlap_ends_to_the_second_even_for_a_key_that_is_believed(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    gated = make()
    account, old = gated.accounts.create("Tea shop")
    gated.accounts.rotate(account, overlap_s=60)
    assert (await gated.ask(key=old)).status == 200
    later = clock.wall() + 61
    monkeypatch.setattr(clock, "wall", lambda: later)
    assert (await gated.ask(key=old)).status == 401


async def test_a_new_key_works_at_once(make: Make) -> None:
    """Nothing remembers that a key was unknown."""
    gated = make()
    account, _ = gated.accounts.create("Tea shop")
    new = gated.accounts.rotate(account)
    assert (await gated.ask(key=new)).status == 200


async def test_keys_that_cannot_be_looked_up_are_no_wrong_keys(make: Make) -> None:
    gated = make()
    _, key = gated.accounts.create("Tea shop")
    with gated.database.begin() as connection:
        connection.exec_driver_sql("DROP TABLE api_keys")
    reply = await gated.ask("k1", key=key)
    assert (reply.status, reply.json()["error"]["type"]) == (503, "api_error")
    assert gated.runs == []


# ------------------------------------------------------------------------------- sk_test_local


async def test_the_local_key_works_on_this_machine(make: Make) -> None:
    gated = make()
    for host in ("127.0.0.1:8000", "localhost:8000", "[::1]:8000", "localhost"):
        assert (await gated.ask(host=host)).json()["account"] == "acct_local/test"
    assert (await gated.ask(host="[::1]:8000", client=("::1", 5))).status == 200


@pytest.mark.parametrize(
    "request_",
    [
        {"client": ("192.0.2.7", 5)},
        {"client": None},
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example"},
        {"host": "[oops"},
        {"headers": [(b"x-forwarded-for", b"192.0.2.7")]},
        {"headers": [(b"forwarded", b"for=192.0.2.7")]},
        {"headers": [(b"x-forwarded-for", b"127.0.0.1")]},
        {"headers": [(b"x-forwarded-proto", b"https")]},
        {"headers": [(b"cf-connecting-ip", b"192.0.2.7")]},
        {"headers": [(b"host", b"localhost")], "host": "evil.example"},
        {"client": ("192.0.2.7", 5), "headers": [(b"x-real-ip", b"127.0.0.1")]},
    ],
    ids=str,
)
async def test_the_local_key_is_refused_from_anywhere_else(
    make: Make, request_: dict[str, Any]
) -> None:
    gated = make()
    reply = await gated.ask("k1", **request_)
    assert reply.status == 401
    assert "account create" in error_of(reply)["message"]
    assert gated.runs == []


async def test_a_real_deployment_has_no_local_key(make: Make) -> None:
    gated = make(local_key=False)
    assert (await gated.ask()).status == 401


# ------------------------------------------------------------------------------------ the rest


@pytest.mark.parametrize("path", ["/", "/docs", "/openapi.json", "/v10", "/explain"])
async def test_pages_need_no_key(make: Make, path: str) -> None:
    assert (await make().ask(key=None, method="GET", path=path)).status == 200


async def test_health_is_told_to_anybody(make: Make) -> None:
    reply = await make().ask(key=None, method="GET", path="/healthz", host="balancer.example")
    assert (reply.status, reply.json()) == (200, {"status": "ok"})


@pytest.mark.parametrize("path", ["/v1", "/v1/", "/v1/charges", "/v1/no/such"])
async def test_the_whole_api_needs_one(make: Make, path: str) -> None:
    assert (await make().ask(key=None, method="GET", path=path)).status == 401


async def test_every_answer_has_an_id_and_a_version(make: Make) -> None:
    gated = make()
    replies = [await gated.ask("k1"), await gated.ask("k1"), await gated.ask(method="GET")]
    seen = {reply.header("request-id") for reply in replies}
    assert len(seen) == 3
    assert None not in seen
    assert all(len(reply.all("request-id")) == 1 for reply in replies)
    assert all(reply.header("stripe-version") for reply in replies)


@pytest.mark.parametrize("idempotency_key", ["k1", None])
async def test_a_body_over_the_limit_is_refused_and_nothing_is_done(
    make: Make, idempotency_key: str | None
) -> None:
    gated = make(body_bytes_max=100)
    declared = await gated.ask(idempotency_key, b"x" * 101)
    assert (declared.status, error_of(declared)["code"]) == (413, "request_too_large")
    in_parts = await gated.ask(idempotency_key, b"", chunks=[b"x" * 60, b"x" * 60])
    assert in_parts.status == 413
    assert gated.runs == []
    fits = await gated.ask(idempotency_key, b"", chunks=[b"x" * 60, b"x" * 40])
    assert (fits.status, fits.json()["bytes"]) == (200, 100)


async def test_a_client_that_leaves_before_its_body_is_there_is_not_answered(make: Make) -> None:
    gated = make()

    async def receive_disconnect() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def nobody(message: Any) -> None:
        raise AssertionError(message)

    lines = [(b"host", b"localhost"), (b"authorization", b"Bearer sk_test_local")]
    scope = {
        "type": "http", "method": "POST", "path": "/v1/charges", "query_string": b"",
        "headers": lines, "client": ("127.0.0.1", 5),
    }  # fmt: skip
    await gated.app(scope, receive_disconnect, nobody)
    assert gated.runs == []


# -------------------------------------------------------------------------------------- limits


def assert_limited(reply: Reply, reason: str) -> None:
    assert reply.status == 429
    assert error_of(reply)["code"] == "rate_limit"
    assert reply.header("stripe-rate-limited-reason") == reason
    assert 0 < int(reply.header("retry-after") or 0) <= 3600


async def test_p7_a_limited_request_spends_no_key(make: Make) -> None:
    gated = make(rates=rates(writes="1/hour"))
    assert (await gated.ask("k1")).status == 200
    assert_limited(await gated.ask("k2"), "endpoint-rate")
    assert len(gated.runs) == 1
    assert (await gated.state("k1"), await gated.state("k2")) == ("completed", None)


async def test_each_endpoint_has_its_own_share_and_reads_another_than_writes(make: Make) -> None:
    gated = make(rates=rates(writes="1/hour", reads="2/hour"))
    assert (await gated.ask()).status == 200
    assert_limited(await gated.ask(path="/v1/charges/ch_1/capture"), "endpoint-rate")
    assert (await gated.ask(path="/v1/refunds")).status == 200
    assert [(await gated.ask(method="GET")).status for _ in range(3)] == [200, 200, 429]


async def test_an_endpoint_can_have_a_rate_of_its_own(make: Make) -> None:
    changed = rates().but(["POST charges=1/hour"])
    gated = make(rates=changed)
    assert [(await gated.ask()).status for _ in range(2)] == [200, 429]
    assert [(await gated.ask(path="/v1/refunds")).status for _ in range(2)] == [200, 200]


async def test_accounts_do_not_draw_on_each_other(make: Make) -> None:
    gated = make(rates=rates(account="1/hour"))
    _, other = gated.accounts.create("Other")
    assert (await gated.ask()).status == 200
    assert_limited(await gated.ask(path="/v1/refunds"), "account-rate")
    assert (await gated.ask(key=other)).status == 200


async def test_all_accounts_together_have_a_limit(make: Make) -> None:
    gated = make(rates=rates(total="1/hour"))
    _, other = gated.accounts.create("Other")
    assert (await gated.ask()).status == 200
    assert_limited(await gated.ask(key=other), "global-rate")


async def test_strangers_are_limited_by_address_and_customers_are_not(make: Make) -> None:
    gated = make(rates=rates(strangers="2/hour", total="3/hour"))
    _, key = gated.accounts.create("Tea shop")
    guesses = [await gated.ask(key=f"sk_test_{n}") for n in range(4)]
    assert [reply.status for reply in guesses] == [401, 401, 429, 429]
    assert_limited(guesses[-1], "address-rate")
    assert_limited(await gated.ask(key=None), "address-rate")
    elsewhere = await gated.ask(key="sk_test_0", client=("192.0.2.7", 5))
    assert elsewhere.status == 401
    assert (await gated.ask(key=key, client=("192.0.2.7", 5))).status == 200


async def test_a_customer_who_was_known_is_let_in_from_an_address_of_guessers(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    gated = make(rates=rates(strangers="1/hour"))
    _, key = gated.accounts.create("Tea shop")
    now = clock.monotonic()
    monkeypatch.setattr(clock, "monotonic", lambda: now)
    assert (await gated.ask(key=key)).status == 200
    assert (await gated.ask(key="sk_test_guess")).status == 401
    now += KEYS_FRESH_S
    assert (await gated.ask(key="sk_test_guess")).status == 429
    assert (await gated.ask(key=key)).status == 200


async def test_guesses_of_an_address_that_is_limited_ask_no_database(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    gated = make(rates=rates(strangers="1/hour"))
    assert (await gated.ask(key="sk_test_guess")).status == 401
    asked: list[bytes] = []
    monkeypatch.setattr(type(gated.accounts), "find_key", lambda _, digest: asked.append(digest))
    assert (await gated.ask(key="sk_test_guess")).status == 429
    assert asked == []


async def test_replays_give_back_what_they_drew(make: Make) -> None:
    gated = make(rates=rates(writes="2/hour", account="2/hour"))
    assert (await gated.ask("k1")).status == 200
    assert all([(await gated.ask("k1")).replayed for _ in range(5)])
    assert (await gated.ask("k2")).status == 200
    assert_limited(await gated.ask("k3"), "endpoint-rate")


async def test_a_completed_key_is_replayed_even_when_the_writes_are_used_up(make: Make) -> None:
    gated = make(rates=rates(writes="1/hour"))
    first = await gated.ask("k1")
    again = await gated.ask("k1")
    assert (again.status, again.replayed, again.body) == (200, True, first.body)
    assert_limited(await gated.ask("k2"), "endpoint-rate")
    assert (await gated.ask("k1", b'{"other": 1}')).status == 400  # a mismatch runs nothing
    assert len(gated.runs) == 1


async def test_replays_have_a_limit_too(make: Make) -> None:
    """They draw on their own bucket first, then on the writes."""
    gated = make(rates=rates(writes="2/hour", replays="1/hour"))
    assert (await gated.ask("k1")).status == 200  # leaves one write
    assert (await gated.ask("k1")).replayed  # the one replay
    assert (await gated.ask("k1")).replayed  # the other write
    assert_limited(await gated.ask("k1"), "replay-rate")


async def test_a_key_that_still_runs_is_no_replay_when_the_writes_are_used_up(make: Make) -> None:
    """Whoever comes now might have to run it, should the first attempt die."""
    gated = make(rates=rates(writes="1/hour"))
    gated.go_on.clear()
    first = asyncio.ensure_future(gated.ask("k1"))
    await gated.started.wait()
    assert await gated.state("k1") == "running"
    assert_limited(await gated.ask("k1"), "endpoint-rate")
    gated.go_on.set()
    assert (await first).status == 200
    assert (await gated.ask("k1")).replayed


async def test_a_look_that_fails_lets_nobody_pass(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    gated = make(rates=rates(writes="1/hour"))
    await gated.ask("k1")

    async def down(verb: object) -> None:
        raise StoreUnavailable("down", sent=False)

    monkeypatch.setattr(gated.middleware.gatherer, "ask", down)
    assert_limited(await gated.ask("k2"), "endpoint-rate")


async def test_looks_for_a_replay_are_limited_like_replays(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each costs a query: who is over the limit cannot have as many as they like."""
    gated = make(rates=rates(writes="1/hour", replays="2/hour"))
    await gated.ask("k1")
    looks: list[object] = []
    asked = gated.middleware.gatherer.ask

    async def count_and_ask(verb: Any) -> Any:
        looks.append(verb)
        return await asked(verb)

    monkeypatch.setattr(gated.middleware.gatherer, "ask", count_and_ask)
    for number in range(5):
        assert (await gated.ask(f"new-{number}")).status == 429
    assert len(looks) == 2
