"""An operator ends an unknown outcome: what retries get then, and what is said about it."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from oncekey import Policy, Runtime, current, single_tenant
from oncekey._core.fingerprint import Fingerprint
from oncekey._core.op import run
from oncekey._core.record import State
from oncekey._core.verbs import Find
from oncekey._engine.decisions import Call, Execute, Replay
from oncekey._engine.guard import Guard
from oncekey.messaging import Duplicate, Inbox, Then
from oncekey.stores.connection import StoreConnection
from oncekey.stores.sqlite.store import SqliteStore
from oncekey.web.wsgi import IdempotencyMiddleware
from tests.cli.conftest import OPERATION, TENANT, Oncekey, Seed
from tests.web.client import ask_wsgi


def stored_record(tmp_path: Path, record: bytes) -> Any:
    line = StoreConnection(SqliteStore(tmp_path / "keys.db"))
    [record_found] = line.perform([Find(record)])
    line.close()
    return record_found


def retry(tmp_path: Path, key: str) -> Any:
    """What the engine decides about the same request, now."""
    line = StoreConnection(SqliteStore(tmp_path / "keys.db"))
    call = Call(TENANT, OPERATION, key, Fingerprint(1, b"f" * 32))
    decision = run(Guard().begin(call, Policy().settled()), lambda verb: line.perform([verb])[0])
    line.close()
    return decision


@pytest.mark.parametrize("place", [2, 4, 7])
def test_the_store_may_be_named_before_among_or_behind_the_options(
    oncekey: Oncekey,
    seed: Seed,
    url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: int,
) -> None:
    record = seed.unknown("order-17")
    monkeypatch.delenv("ONCEKEY_STORE")
    words = ["resolve", record.hex()[:16], "--as", "released", "--yes", "--reason", "none"]
    words.insert(place, url)

    assert oncekey(*words).code == 0
    assert stored_record(tmp_path, record).state is State.RELEASED


def test_more_than_the_store_is_not_taken_for_it(
    oncekey: Oncekey, seed: Seed, url: str, tmp_path: Path
) -> None:
    record = seed.unknown("order-17")

    ran = oncekey("resolve", record.hex()[:16], "--as", "released", "--yes", url, "more")

    assert ran.code == 2
    assert "unrecognized arguments" in ran.err
    assert stored_record(tmp_path, record).state is State.UNKNOWN


def test_as_completed_retries_get_the_answer(oncekey: Oncekey, seed: Seed, tmp_path: Path) -> None:
    record = seed.unknown("order-17")
    body = tmp_path / "answer.json"
    body.write_bytes(b'{"charge": "ch_1"}')
    said = ("--header", "Content-Type: application/json", "--header", "location: /charges/1")

    ran = oncekey(
        "resolve", record.hex()[:16], "--as", "completed", "--status", "201", "--body", f"@{body}",
        *said, "--by", "alice", "--reason", "ch_1 is at the provider", "--yes",
    )  # fmt: skip

    assert ran.code == 0
    decision = retry(tmp_path, "order-17")
    assert isinstance(decision, Replay)
    assert (decision.answer.status, decision.answer.body) == (201, b'{"charge": "ch_1"}')
    assert dict(decision.answer.headers) == {
        b"content-type": b"application/json",
        b"location": b"/charges/1",
    }
    assert re.fullmatch(
        rf"\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00 alice resolved {record.hex()[:16]} "
        r"\(acme, POST /charges, key [0-9a-f]{12}\) as completed with status 201: "
        r"ch_1 is at the provider\n",
        ran.out,
    )


def test_as_released_the_next_retry_runs(oncekey: Oncekey, seed: Seed, tmp_path: Path) -> None:
    record = seed.unknown("order-17")
    which = f"{TENANT}/{OPERATION}/order-17"

    ran = oncekey("resolve", which, "--as", "released", "--reason", "not there", "--yes", "--json")

    assert ran.code == 0
    audit = ran.json
    assert audit["resolved"] == record.hex()
    assert (audit["as"], audit["status"], audit["reason"]) == ("released", None, "not there")
    assert audit["by"]
    assert "order-17" not in ran.out
    decision = retry(tmp_path, "order-17")
    assert isinstance(decision, Execute)
    assert decision.attempt.attempt == 2


def test_p9_the_store_is_asked_again_if_it_does_not_answer(
    oncekey: Oncekey, seed: Seed, url: str, tmp_path: Path
) -> None:
    record = seed.unknown("order-17")
    other = sqlite3.connect(tmp_path / "keys.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    class Frees(logging.Handler):
        """The file is free again once it is told that the store did not answer."""

        def emit(self, record: logging.LogRecord) -> None:
            if other.in_transaction:
                other.execute("ROLLBACK")

    frees = Frees(logging.WARNING)
    logging.getLogger("oncekey").addHandler(frees)
    try:
        ran = oncekey(
            *("resolve", record.hex(), f"{url}?timeout_s=0.05", "--as", "released", "--yes"),
            *("--reason", "not there"),
        )
    finally:
        logging.getLogger("oncekey").removeHandler(frees)
        other.close()

    assert ran.code == 0
    assert stored_record(tmp_path, record).state is State.RELEASED


def test_it_is_told_to_the_log_as_an_event(
    oncekey: Oncekey, seed: Seed, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "oncekey")
    record = seed.unknown("order-17")
    oncekey(
        "resolve", record.hex(), "--as", "released", "--reason", "not there", "--by", "bob", "--yes"
    )

    [told] = [line for line in caplog.records if hasattr(line, "oncekey")]
    assert told.getMessage().endswith("resolved as released by bob: not there")
    assert told.oncekey.by == "bob"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda seed: seed.running("k").id, "is running, not unknown"),
        (lambda seed: seed.completed("k"), "is completed, not unknown"),
        (lambda seed: seed.released("k"), "is released, not unknown"),
    ],
    ids=["running", "completed", "released"],
)
def test_what_is_not_unknown_is_not_touched(
    oncekey: Oncekey, seed: Seed, tmp_path: Path, make: Any, says: str
) -> None:
    record = make(seed)
    before = stored_record(tmp_path, record)

    ran = oncekey("resolve", record.hex(), "--as", "released", "--reason", "r", "--yes")

    assert ran.code == 2
    assert says in ran.err
    assert ran.out == ""
    after = stored_record(tmp_path, record)
    assert (after.state, after.fence, after.token) == (before.state, before.fence, before.token)


def test_released_a_step_that_was_only_begun_is_taken_once_more(
    oncekey: Oncekey, url: str, tmp_path: Path
) -> None:
    """The operator knows that it did not happen: the retry is not unknown again."""
    taken: list[str] = []

    def shop(environ: Any, start_response: Any) -> list[bytes]:
        op = current()
        number = op.step_sync("number", count)
        op.step_sync("print", printer, at_most_once=True)
        start_response("201 Created", [("content-type", "text/plain")])
        return [b"letter %d" % number]

    def count() -> int:
        taken.append("number")
        return 7

    def printer() -> None:
        taken.append("print")
        if taken.count("print") == 1:
            raise ConnectionError("the printer hung up")

    app = IdempotencyMiddleware(shop, store=url, tenant=single_tenant)
    with closing(app):
        broken = ask_wsgi(app, "letter-1")
        assert (broken.status, broken.header("idempotency-outcome")) == (500, "unknown")
        assert [ask_wsgi(app, "letter-1").kind for _ in range(2)] == ["outcome-unknown"] * 2
        assert taken == ["number", "print"]

        ran = oncekey(
            "resolve", "single/POST /orders/letter-1", "--as", "released",
            "--reason", "no paper left", "--yes",
        )  # fmt: skip

        assert (ran.code, ran.err) == (0, "")
        first, again = ask_wsgi(app, "letter-1"), ask_wsgi(app, "letter-1")
        assert (first.status, first.body) == (201, b"letter 7")
        assert again.replayed
        assert taken == ["number", "print", "print"]


@pytest.mark.parametrize(("body", "result"), [("done by hand", "done by hand"), ("[1]", [1])])
def test_a_message_that_is_done_is_acknowledged_whatever_the_body(
    oncekey: Oncekey, url: str, body: str, result: Any
) -> None:
    """Plain text made every later delivery fail, and a completed record cannot be resolved."""

    def printer() -> None:
        raise ConnectionError("the printer hung up")

    def letter() -> None:
        current().step_sync("print", printer, at_most_once=True)

    with closing(Runtime(url)) as runtime:
        inbox = Inbox(runtime, name="letters")
        with pytest.raises(ConnectionError):
            inbox.handle_sync("letter-1", letter)
        assert inbox.handle_sync("letter-1", letter).then is Then.DEAD_LETTER

        ran = oncekey(
            "resolve", "single/letters/letter-1", "--as", "completed", "--status", "200",
            "--body", body, "--yes",
        )  # fmt: skip

        assert ran.code == 0
        assert inbox.handle_sync("letter-1", letter) == Duplicate(result)


@pytest.mark.parametrize("header", ["Set-Cookie: sid=1", "authorization: Bearer b"])
def test_p12_an_operator_keeps_no_secrets_either(
    oncekey: Oncekey, seed: Seed, tmp_path: Path, header: str
) -> None:
    record = seed.unknown("order-17")

    ran = oncekey(
        "resolve", record.hex(), "--as", "completed", "--status", "201", "--body", "{}",
        "--header", header, "--yes",
    )  # fmt: skip

    assert ran.code == 2
    assert "never stored" in ran.err
    assert stored_record(tmp_path, record).state is State.UNKNOWN


def test_no_such_record(oncekey: Oncekey, seed: Seed) -> None:
    seed.unknown("order-17")

    ran = oncekey("resolve", "acme/POST /charges/order-18", "--as", "released", "--reason", "r")

    assert ran.code == 1
    assert "there is no record" in ran.err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("typed", "state"), [("y\n", State.RELEASED), ("\n", State.UNKNOWN)])
def test_on_a_terminal_it_asks(
    oncekey: Oncekey,
    seed: Seed,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    typed: str,
    state: State,
) -> None:
    record = seed.unknown("order-17")
    monkeypatch.setattr(sys, "stdin", Terminal(typed))

    ran = oncekey("resolve", record.hex(), "--as", "released", "--reason", "r")

    assert "Resolve it as released: the next retry runs it? [y/N]" in ran.err
    assert ran.code == (0 if state is State.RELEASED else 2)
    assert stored_record(tmp_path, record).state is state


def test_a_user_who_has_no_name_says_who_decides(
    oncekey: Oncekey, seed: Seed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container, whose user is but a number."""
    record = seed.unknown("order-17")
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 2)
    words = "resolve", record.hex(), "--as", "released", "--reason", "r", "--yes"

    ran = oncekey(*words)

    assert (ran.code, ran.err) == (
        2,
        "oncekey: this user has no name here: say who decided, with --by WHO\n",
    )
    assert stored_record(tmp_path, record).state is State.UNKNOWN
    assert oncekey(*words, "--by", "alice").code == 0


def test_a_body_that_is_no_text_is_kept_as_it_was_typed(
    oncekey: Oncekey, seed: Seed, tmp_path: Path
) -> None:
    record = seed.unknown("order-17")
    body = os.fsdecode(b"caf\xe9")

    oncekey(
        "resolve", record.hex(), "--as", "completed", "--status", "200", "--body", body, "--yes"
    )

    answer = stored_record(tmp_path, record).answer
    assert answer is not None
    assert answer.body == b"caf\xe9"


def test_without_a_terminal_it_does_nothing_unasked(
    oncekey: Oncekey, seed: Seed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = seed.unknown("order-17")
    monkeypatch.setattr(sys, "stdin", io.StringIO())

    ran = oncekey("resolve", record.hex(), "--as", "released", "--reason", "r")

    assert ran.code == 2
    assert "--yes" in ran.err
    assert stored_record(tmp_path, record).state is State.UNKNOWN


def test_the_list_of_what_is_unknown(oncekey: Oncekey, seed: Seed) -> None:
    seed.completed("done")
    record = seed.unknown("order-17")

    listed = json.loads(oncekey("list", "--unknown", "--json").out)["records"]

    assert [shown["id"] for shown in listed] == [record.hex()]
