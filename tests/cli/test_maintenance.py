"""Keeping a store in order."""

import uuid
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from oncekey import open_store
from oncekey._core.record import Answer
from oncekey._core.verbs import Find
from oncekey.cli import maintenance
from oncekey.stores.connection import StoreConnection
from oncekey.stores.sqlite.store import SqliteStore
from tests.cli.conftest import ANSWER, TENANT, Oncekey, Seed


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "SWEEP_PAUSE_S", 0.0)


# ------------------------------------------------------------------------ migrate


def test_migrate_makes_a_store_and_can_be_repeated(oncekey: Oncekey, url: str) -> None:
    first, second = oncekey("migrate"), oncekey("migrate")

    assert first.code == second.code == 0
    assert first.out.startswith("applied ")
    assert second.out == "up to date: nothing to apply\n"
    assert oncekey("count").code == 0


def test_migrate_as_json(oncekey: Oncekey, url: str) -> None:
    assert oncekey("migrate", "--json").json["applied"]
    assert oncekey("migrate", "--json").json == {"applied": []}


# ------------------------------------------------------------------------ sweep


def test_p10_sweep_removes_what_expired_and_nothing_else(
    oncekey: Oncekey, seed: Seed, hour_ago: Seed
) -> None:
    hour_ago.completed("expired", retention_s=60.0)
    hour_ago.completed("kept")
    hour_ago.running("lapsed")
    seed.running("live")
    seed.unknown("unknown")

    ran = oncekey("sweep")

    left = oncekey("list", "--json", "--show-keys").json["records"]
    assert (ran.code, ran.out) == (0, "removed 1 expired record\n")
    assert {record["key"] for record in left} == {"kept", "lapsed", "live", "unknown"}


def test_sweep_of_nothing_is_fine(oncekey: Oncekey, seed: Seed) -> None:
    seed.completed("kept")

    ran = oncekey("sweep")

    assert (ran.code, ran.out, ran.err) == (0, "removed 0 expired records\n", "")


def test_sweep_takes_as_many_batches_as_it_needs(
    oncekey: Oncekey, hour_ago: Seed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "SWEEP_ROWS_MAX", 3)
    for number in range(10):
        hour_ago.completed(f"old-{number}", retention_s=60.0)

    assert oncekey("sweep", "--json").json == {"removed": 10, "limit_reached": False}


def test_a_batch_that_is_not_full_need_not_be_the_last() -> None:
    """A store that walks over its keys gives what it meets, not what there is."""
    batches = iter([2, 1, 500, 3, 0])

    assert maintenance.in_batches(lambda rows: next(batches), 1000, "{}") == 506


def test_sweep_stops_at_its_limit_and_says_so(oncekey: Oncekey, hour_ago: Seed) -> None:
    for number in range(5):
        hour_ago.completed(f"old-{number}", retention_s=60.0)

    ran = oncekey("sweep", "--limit", "2")

    assert ran.out == "removed 2 expired records; stopped at --limit 2, there may be more\n"
    assert oncekey("count", "--json").json["total"] == 3


# ------------------------------------------------------------------------ purge


def test_purge_blanks_one_tenant_and_keeps_the_ids(
    oncekey: Oncekey, seed: Seed, tmp_path: Path
) -> None:
    gone = seed.completed("a")
    kept = seed.completed("b", tenant="globex")

    ran = oncekey("purge", "--tenant", TENANT)

    line = StoreConnection(SqliteStore(tmp_path / "keys.db"))
    [blank] = line.perform([Find(gone)])
    [whole] = line.perform([Find(kept)])
    line.close()
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == "blanked 1 record of tenant 'acme'; their ids stay until they expire\n"
    assert (blank.key, blank.answer) == ("", Answer(201, (), None))
    assert whole.key == "b"
    assert whole.answer.body is not None


def test_purge_says_when_a_request_still_runs(oncekey: Oncekey, seed: Seed) -> None:
    seed.completed("a")
    seed.running("b")

    ran = oncekey("purge", "--tenant", TENANT)
    again = oncekey("purge", "--tenant", TENANT, "--json")

    assert "still run" in ran.err
    assert again.json == {"blanked": 0, "complete": False}


def test_purge_of_a_tenant_that_has_nothing_says_so(oncekey: Oncekey, seed: Seed) -> None:
    seed.completed("a")

    ran = oncekey("purge", "--tenant", "amce")

    assert ran.code == 0
    assert "nothing to blank: tenant 'amce'" in ran.out


def test_purge_does_not_touch_what_is_oncekeys_own(oncekey: Oncekey, seed: Seed) -> None:
    """Blanked, the guard would keep every process from starting."""
    seed.completed("a")
    assert oncekey("amnesia", "--until", "2000-01-01T00:00:00Z").code == 0

    ran = oncekey("purge", "--tenant", "oncekey")

    assert ran.code == 2
    assert "belong to oncekey itself" in ran.err
    assert "unless it was made after 2000-01-01T00:00:00" in oncekey("amnesia").out


def test_purge_takes_as_many_batches_as_it_needs(
    oncekey: Oncekey, seed: Seed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "SWEEP_ROWS_MAX", 3)
    for number in range(10):
        seed.completed(f"key-{number}")

    limited = oncekey("purge", "--tenant", TENANT, "--limit", "4", "--json")
    rest = oncekey("purge", "--tenant", TENANT, "--json")

    assert limited.json == {"blanked": 4, "complete": False}
    assert rest.json == {"blanked": 6, "complete": True}


# ------------------------------------------------------------------------ layouts


@pytest.mark.slow
def test_migrate_moves_postgres_into_a_layout(oncekey: Oncekey, postgres_url: str) -> None:
    name = f"oncekey_{uuid.uuid4().hex}"
    url = urlsplit(postgres_url)._replace(path=f"/{name}", query="allow=unsafe-durability").geturl()
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}".encode())
        oncekey("migrate", url)
        store = open_store(url)
        with closing(Seed(store)) as seed:
            kept = seed.completed("order-1")
        for layout, times in {"separate": 1, "partitioned": 2, "inline": 1}.items():
            moved = oncekey("migrate", "--layout", layout, url).out.splitlines()
            plural = "" if times == 1 else "s"
            assert moved[1] == f"layout {layout}: moved {times} record{plural}"
            assert oncekey("migrate", "--json", "--layout", layout, url).json["moved"] == 0
            with closing(StoreConnection(store)) as line:
                [found] = line.perform([Find(kept)])
            assert found.answer == ANSWER
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def test_other_stores_have_no_layouts(oncekey: Oncekey, url: str) -> None:
    ran = oncekey("migrate", "--layout", "inline")
    assert ran.code == 2
    assert "only PostgreSQL has others" in ran.err
