"""The network as a process: it carries out each key once, whatever happens to it or to the line."""

import asyncio
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from oncekey.client import Retries
from payments.network import (
    FAULTS,
    Authorised,
    Declined,
    Network,
    NetworkDown,
    NetworkRefused,
    Refunded,
    Voided,
)
from payments.network.server import CRASH_STATUS
from tests.payments.card_network import CardNetwork

pytestmark = [pytest.mark.slow]

VISA = "4242424242424242"
ONCE = Retries(attempts_max=1)
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CardNetwork]:
    with CardNetwork(tmp_path_factory.mktemp("network")) as running:
        yield running


@pytest.fixture
def client(network: CardNetwork) -> Iterator[Network]:
    with network.client() as client:
        client.disarm()
        yield client


@pytest.fixture
def ch() -> str:
    """A reference that no other test uses."""
    return f"ch_{next(_numbers)}"


def charge(client: Network, ch: str, amount: int = 500, card: str = VISA) -> Authorised | Declined:
    return client.authorise(
        key=f"{ch}/a", card=card, amount=amount, currency="usd", reference=ch, capture=True
    )


def kinds(client: Network, ch: str) -> list[str]:
    return [line.kind for line in client.transactions(reference=ch)]


# ------------------------------------------------------------------------------------ all goes well


def test_authorise_capture_refund(client: Network, ch: str) -> None:
    held = client.authorise(key=f"{ch}/a", card=VISA, amount=500, currency="usd", reference=ch)
    assert isinstance(held, Authorised)
    assert kinds(client, ch) == ["authorisation"]
    client.capture(key=f"{ch}/c", authorisation=held.id, amount=400, reference=ch)
    back = client.refund(key=f"{ch}/r", authorisation=held.id, amount=150, reference=ch)
    assert isinstance(back, Refunded)
    lines = list(client.transactions(reference=ch))
    assert [(line.kind, line.amount, line.authorisation) for line in lines] == [
        ("authorisation", 500, None),
        ("capture", 400, held.id),
        ("refund", 150, held.id),
    ]
    assert {line.card for line in lines} == {"4242"}


def test_a_declined_card_is_a_kept_answer(client: Network, ch: str) -> None:
    first = charge(client, ch, card="4000000000009995")
    assert first == charge(client, ch, card="4000000000009995")
    assert isinstance(first, Declined)
    assert (first.code, first.decline_code) == ("card_declined", "insufficient_funds")
    assert kinds(client, ch) == ["authorisation"]


def test_a_key_is_carried_out_once(client: Network, ch: str) -> None:
    before = client.tally()
    assert charge(client, ch) == charge(client, ch)
    after = client.tally()
    assert after.captures - before.captures == 1
    assert after.captured["usd"] - before.captured.get("usd", 0) == 500


def test_a_key_with_another_request_is_refused(client: Network, ch: str) -> None:
    charge(client, ch)
    with pytest.raises(NetworkRefused) as refused:
        charge(client, ch, amount=501)
    assert refused.value.code == "key_reused"
    assert kinds(client, ch) == ["authorisation", "capture"]


def test_racing_requests_with_one_key(client: Network, ch: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        ids = set(pool.map(lambda _: charge(client, ch), range(24)))
    assert len(ids) == 1
    assert kinds(client, ch) == ["authorisation", "capture"]


def test_more_than_there_is_cannot_be_moved(client: Network, ch: str) -> None:
    held = charge(client, ch, amount=300)
    assert isinstance(held, Authorised)
    to = {"authorisation": held.id, "reference": ch}
    client.refund(key=f"{ch}/1", amount=200, **to)
    with pytest.raises(NetworkRefused, match="Refunded 200 of 300"):
        client.refund(key=f"{ch}/2", amount=101, **to)
    with pytest.raises(NetworkRefused, match="Captured 300 of 300"):
        client.capture(key=f"{ch}/3", amount=1, **to)
    with pytest.raises(NetworkRefused, match="has a capture already"):
        client.void(key=f"{ch}/4", **to)
    assert kinds(client, ch) == ["authorisation", "capture", "refund"]


def test_what_is_voided_cannot_be_captured(client: Network, ch: str) -> None:
    held = client.authorise(key=f"{ch}/a", card=VISA, amount=500, currency="usd", reference=ch)
    assert isinstance(held, Authorised)
    assert isinstance(client.void(key=f"{ch}/v", authorisation=held.id, reference=ch), Voided)
    with pytest.raises(NetworkRefused) as refused:
        client.capture(key=f"{ch}/c", authorisation=held.id, amount=1, reference=ch)
    assert refused.value.code == "voided"


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/authorisations", b"{", 400),
        ("/authorisations", b"[]", 400),
        ("/authorisations", b"{}", 400),
        ("/voids", b'{"authorisation": 1, "reference": "x"}', 400),
        ("/voids", b'{"authorisation": "", "reference": "x"}', 400),
        ("/voids", b'{"authorisation": "ntx_none", "reference": "x"}', 404),
        ("/refunds", b'{"authorisation": "a", "reference": "x", "amount": 0}', 400),
        ("/refunds", b'{"authorisation": "a", "reference": "x", "amount": true}', 400),
        ("/voids", b'{"authorisation": "a", "reference": "\\ud800"}', 400),
        ("/voids", b" " * 70_000, 413),
        ("/voids", b"[" * 60_000, 400),
        ("/faults", b'{"fault": "flood"}', 400),
        ("/faults", b'{"fault": "slow", "times": -1}', 400),
        ("/faults", b'{"fault": "slow", "times": "1"}', 400),
    ],
)
def test_bad_input_is_told_and_changes_nothing(
    network: CardNetwork, client: Network, path: str, body: bytes, status: int
) -> None:
    before, armed = list(client.transactions()), client.faults()
    headers = {"Idempotency-Key": "bad"}
    answer = httpx2.post(network.url + path, content=body, headers=headers, trust_env=False)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]
    assert (list(client.transactions()), client.faults()) == (before, armed)


@pytest.mark.parametrize(("after", "status"), [("9" * 30, 200), ("-9", 200), ("9" * 5000, 400)])
def test_a_page_of_the_book_begins_anywhere(network: CardNetwork, after: str, status: int) -> None:
    url = f"{network.url}/transactions?after={after}"
    assert httpx2.get(url, trust_env=False).status_code == status


def test_a_request_without_a_key_is_refused(network: CardNetwork) -> None:
    body = {"authorisation": "a", "reference": "r"}
    answer = httpx2.post(f"{network.url}/voids", json=body, trust_env=False)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "key"


# ------------------------------------------------------------------------------------------- faults


def test_every_fault_is_declared_with_its_explanation(client: Network) -> None:
    listed = client.arm("slow", 2)
    assert [fault["fault"] for fault in listed] == list(FAULTS)
    assert all(fault["explains"].endswith(".") for fault in listed)
    assert [fault["times"] for fault in listed] == [2, 0, 0, 0, 0, 0, 0]
    assert all(fault["times"] == 0 for fault in client.disarm())


@pytest.mark.parametrize("fault", [name for name in FAULTS if not name.startswith("crash")])
def test_whatever_happens_on_the_way_one_charge_is_made(
    client: Network, ch: str, fault: str
) -> None:
    client.arm(fault)
    assert isinstance(charge(client, ch), Authorised)
    assert kinds(client, ch) == ["authorisation", "capture"]
    assert all(left["times"] == 0 for left in client.faults())


@pytest.mark.parametrize(
    ("fault", "charged"),
    [("lost-answer-after", True), ("500-before", False), ("500-after", True), ("reset", False)],
)
def test_what_is_true_when_the_caller_does_not_know(
    network: CardNetwork, client: Network, ch: str, fault: str, charged: bool
) -> None:
    client.arm(fault)
    with Network(network.url, retries=ONCE) as impatient:
        with pytest.raises(NetworkDown):
            charge(impatient, ch)
        assert bool(kinds(client, ch)) == charged
        assert isinstance(charge(impatient, ch), Authorised)
    assert kinds(client, ch) == ["authorisation", "capture"]


def test_a_reset_is_a_reset_on_the_wire(network: CardNetwork, client: Network) -> None:
    body = b'{"authorisation": "a", "reference": "r"}'
    head = b"POST /voids HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body)

    async def exchange() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", network.port)
        try:
            writer.write(head + body)
            return await reader.read()
        finally:
            writer.close()

    client.arm("reset")
    with pytest.raises(ConnectionResetError):
        asyncio.run(exchange())


@pytest.mark.parametrize(("fault", "charged"), [("crash-before", False), ("crash-after", True)])
def test_a_crash_keeps_what_was_committed_and_nothing_else(
    tmp_path: Path, fault: str, charged: bool
) -> None:
    with CardNetwork(tmp_path) as network, Network(network.url, retries=ONCE) as client:
        client.arm("500-after", 1)
        client.arm(fault, 2)
        with pytest.raises(NetworkDown):
            charge(client, "ch_first")
        for ch in ("ch_new", "ch_first"):  # a replay can be interrupted as well
            with pytest.raises(NetworkDown):
                charge(client, ch)
            assert network.child.wait(30) == CRASH_STATUS
            network.restart()
        assert bool(kinds(client, "ch_new")) == charged
        for ch in ("ch_new", "ch_first"):
            assert isinstance(charge(client, ch), Authorised)
        assert sorted(network.rows()) == [("ch_first", 500), ("ch_new", 500)]


def test_no_page_in_a_browser_arms_a_fault_or_reads_the_book(
    network: CardNetwork, client: Network
) -> None:
    said, origin = {"fault": "slow", "times": 1}, {"origin": "http://evil.example"}
    with httpx2.Client(base_url=network.url, trust_env=False) as page:
        assert page.post("/faults", json=said, headers=origin).status_code == 403
        rebound = page.get("/transactions", headers={"host": "evil.example"})
        assert rebound.status_code == 400
    assert [each["times"] for each in client.faults() if each["fault"] == "slow"] == [0]


def test_sigterm_is_an_orderly_end(tmp_path: Path) -> None:
    with CardNetwork(tmp_path) as network:
        assert network.child.stop(30) == 0
