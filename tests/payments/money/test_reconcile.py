"""The end-to-end oracle: finds what differs, waits for what is under way, and says both sides."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from payments import clock
from payments.money import ledger, reconcile
from payments.money.reconcile import Difference, LedgerState, NetworkState, compare
from payments.network import Authorised, Network
from payments.network.book import Book as NetworkBook
from payments.network.book import open_file
from payments.settings import Settings
from payments.storage import ids
from payments.storage.database import Database
from payments.storage.tables import charges, refunds
from tests.payments.card_network import CardNetwork

NOW = 1_000_000
TENANT = "acct_1/test"
VISA = "4242424242424242"


# ------------------------------------------------------------------------------------- comparing


def both_sides() -> tuple[LedgerState, NetworkState]:
    here = LedgerState({("ch_1", "usd"): 500, ("re_1", "usd"): -200}, {"ch_1": "ntx_1"}, set(), {})
    there = NetworkState(dict(here.moved), {"ch_1": ["ntx_1"]}, set(), {"ch_1": NOW - 9})
    return here, there


def test_sides_that_agree() -> None:
    report = compare(*both_sides(), now_s=NOW)
    assert (report.differences, report.pending) == ([], [])
    assert (report.movements, report.totals) == (2, {"usd": 300})


@pytest.mark.parametrize(
    ("breaks", "line"),
    [
        pytest.param(
            lambda here, there: there.moved.pop(("ch_1", "usd")),
            Difference("ch_1", "500 usd posted", "nothing taken"),
            id="posted but not taken",
        ),
        pytest.param(
            lambda here, there: here.moved.pop(("re_1", "usd")),
            Difference("re_1", "nothing posted", "-200 usd taken"),
            id="given back but not posted",
        ),
        pytest.param(
            lambda here, there: there.moved.update({("ch_1", "usd"): 1000}),
            Difference("ch_1", "500 usd posted", "1000 usd taken"),
            id="taken twice",
        ),
        pytest.param(
            lambda here, there: there.holds["ch_1"].append("ntx_2"),
            Difference("ch_1", "authorised as ntx_1", "authorised 2 times: ['ntx_1', 'ntx_2']"),
            id="authorised twice",
        ),
        pytest.param(
            lambda here, there: here.holds.clear(),
            Difference("ch_1", "not authorised", "authorised as ntx_1"),
            id="held for nobody",
        ),
        pytest.param(
            lambda here, there: there.holds.clear(),
            Difference("ch_1", "authorised as ntx_1", "not authorised"),
            id="an authorisation that never was",
        ),
        pytest.param(
            lambda here, there: here.released.add("ch_1"),
            Difference("ch_1", "voided", "still held"),
            id="let go by us alone",
        ),
        pytest.param(
            lambda here, there: there.released.add("ch_1"),
            Difference("ch_1", "still held", "voided"),
            id="let go by the network alone",
        ),
        pytest.param(
            lambda here, there: here.unbalanced.update({"charge:ch_1": 7}),
            Difference("charge:ch_1", "entries sum to 7, not to 0", "-"),
            id="unbalanced",
        ),
    ],
)
def test_every_difference_is_a_line_with_both_sides(
    breaks: Callable[[LedgerState, NetworkState], object], line: Difference
) -> None:
    here, there = both_sides()
    breaks(here, there)
    assert compare(here, there, now_s=NOW).differences == [line]


def test_what_is_under_way_is_told_apart_until_it_takes_too_long() -> None:
    here, there = both_sides()
    there.moved[("ch_2", "usd")] = 900
    there.holds["ch_2"] = ["ntx_9"]
    here.unfinished.update({"ch_2": NOW - 60, "ch_3": NOW - 60})
    soon = compare(here, there, now_s=NOW, pending_s=61)
    assert soon.differences == []
    assert [line.what for line in soon.pending] == ["ch_2", "ch_2", "ch_3"]
    late = compare(here, there, now_s=NOW, pending_s=60)
    assert late.pending == []
    assert [line.what for line in late.differences] == ["ch_2", "ch_2", "ch_3"]


# ------------------------------------------------------------------------------------ both files


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(Settings(data=tmp_path))
    database.create_tables()
    with contextlib.closing(database):
        yield database


def sale(path: Path, reference: str, amount: int = 500) -> str:
    """A charge at the network, straight into its book."""
    fields = {
        "card": VISA,
        "amount": amount,
        "currency": "usd",
        "reference": reference,
        "capture": True,
    }
    with contextlib.closing(open_file(path)) as file:
        NetworkBook(file).execute("authorisation", reference, fields, lambda: None)
        found = file.execute("SELECT id FROM transactions WHERE reference = ?", (reference,))
        return str(found.fetchone()[0])


def charge_row(
    database: Database, id_: str, *, authorisation: str | None, status: str = "succeeded"
) -> None:
    with database.begin() as connection:
        connection.execute(
            charges.insert().values(
                tenant=TENANT,
                id=id_,
                created=clock.now_s(),
                amount=500,
                currency="usd",
                status=status,
                capture=True,
                network_key=id_,
                authorisation=authorisation,
            )
        )
        if status == "succeeded":
            ledger.post(connection, TENANT, "charge", id_, 500, "usd")


def test_the_files_of_both_sides(
    tmp_path: Path, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "network.db"
    command = ["--data", str(tmp_path), "--network", str(file)]
    charge_row(database, "ch_1", authorisation=sale(file, "ch_1"))
    assert reconcile.main(command) == 0
    assert capsys.readouterr().out == "1 movements, 500 usd: 0 differences, 0 pending\n"
    sale(file, "ch_2")
    charge_row(database, "ch_2", authorisation=None, status="pending")
    assert reconcile.main(command) == 0
    assert "2 movements, 1000 usd: 0 differences, 2 pending\n" in capsys.readouterr().out
    with database.begin() as connection:
        connection.execute(charges.delete().where(charges.c.id == "ch_2"))
    looked = reconcile.reconcile(database, lambda: reconcile.read_file(file), pause=lambda _: None)
    assert Difference("ch_2", "nothing posted", "500 usd taken") in looked.differences


def test_what_happens_between_two_looks_is_no_difference(
    tmp_path: Path, database: Database
) -> None:
    file = tmp_path / "network.db"
    waited: list[float] = []

    def posted_meanwhile(seconds: float) -> None:
        waited.append(seconds)
        charge_row(database, "ch_1", authorisation=authorisation)

    authorisation = sale(file, "ch_1")
    report = reconcile.reconcile(
        database, lambda: reconcile.read_file(file), pause=posted_meanwhile
    )
    assert (report.differences, len(waited)) == ([], 1)


def test_a_pending_refund_waits(tmp_path: Path, database: Database) -> None:
    with database.begin() as connection:
        connection.execute(
            refunds.insert().values(
                tenant=TENANT,
                id="re_1",
                created=clock.now_s(),
                amount=1,
                currency="usd",
                charge="ch_1",
                status="pending",
                network_key="key",
            )
        )
    assert list(reconcile.read_ledger(database).unfinished) == ["re_1"]


def test_a_side_that_cannot_be_read_is_no_agreement(
    tmp_path: Path, database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "nowhere" / "network.db")
    assert reconcile.main(["--data", str(tmp_path), "--network", missing]) == 2
    assert "Check --network" in capsys.readouterr().err
    sale(tmp_path / "network.db", "ch_1")
    nowhere = ["--database", f"sqlite:///{tmp_path}/empty.db"]
    assert reconcile.main([*nowhere, "--network", str(tmp_path / "network.db")]) == 2
    assert "Check --data or --database" in capsys.readouterr().err


def test_the_ledger_is_that_of_the_server_where_the_environment_names_it(
    tmp_path: Path,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Compared with an empty one, all that the network took would be a difference."""
    file = tmp_path / "network.db"
    charge_row(database, "ch_1", authorisation=sale(file, "ch_1"))
    monkeypatch.setenv("PAYMENTS_DATABASE", database.url)
    assert reconcile.main(["--data", str(tmp_path / "empty"), "--network", str(file)]) == 0
    assert "1 movements, 500 usd: 0 differences" in capsys.readouterr().out


@pytest.mark.slow
def test_a_ledger_on_postgresql(
    tmp_path: Path, postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = f"reconcile_{ids.random_letters(12).lower()}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"CREATE SCHEMA {schema}".encode())
        url = f"{postgres_url}?options=-csearch_path%3D{schema}"
        with contextlib.closing(Database(Settings(database_url=url))) as database:
            database.create_tables()
            file = tmp_path / "network.db"
            charge_row(database, "ch_1", authorisation=sale(file, "ch_1"))
            charge_row(database, "ch_2", authorisation=None, status="pending")
        assert reconcile.main(["--database", url, "--network", str(file)]) == 0
        assert "1 movements, 500 usd: 0 differences, 1 pending" in capsys.readouterr().out
        admin.execute(f"DROP SCHEMA {schema} CASCADE".encode())


@pytest.mark.slow
def test_against_a_network_that_runs(
    tmp_path: Path,
    database: Database,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconcile, "BETWEEN_LOOKS_S", 0.01)
    with CardNetwork(tmp_path) as network, Network(network.url) as client:
        held = client.authorise(
            key="1", card=VISA, amount=500, currency="usd", reference="ch_1", capture=True
        )
        assert isinstance(held, Authorised)
        command = ["--data", str(tmp_path), "--network", network.url]
        assert reconcile.main(command) == 1
        line = "DIFFERENCE  ch_1  ledger: nothing posted  network: 500 usd taken"
        assert line in capsys.readouterr().out.splitlines()
        charge_row(database, "ch_1", authorisation=held.id)
        assert reconcile.main(command) == 0
