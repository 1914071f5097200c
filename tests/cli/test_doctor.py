"""What `oncekey doctor` says of a store and its records."""

from pathlib import Path

import pytest

from oncekey._core.verbs import Scan
from oncekey._system.clock import SystemClock
from oncekey.cli.doctor import ClockReading, Survey, compare_clocks
from oncekey.stores.checks import Level, Size
from oncekey.stores.connection import StoreConnection
from oncekey.stores.sqlite.store import SqliteStore
from tests.cli.conftest import Oncekey, Seed
from tests.cli.doctor_kit import Doctor


@pytest.fixture
def doctor(oncekey: Oncekey) -> Doctor:
    return Doctor(oncekey)


# ---------------------------------------------------------------------------------- every engine


def test_what_is_fine_is_said_to_be_fine(oncekey: Oncekey, seed: Seed, url: str) -> None:
    seed.completed("order-1")

    ran = oncekey("doctor")

    assert ran.code == 0
    assert "UNSAFE" not in ran.out
    assert "fine      durability       synchronous = FULL\n" in ran.out
    assert "fine      records          1: 0 running, 1 completed, 0 released, 0 unknown" in ran.out


def test_what_is_unsafe_comes_first_with_what_to_do(oncekey: Oncekey, seed: Seed, url: str) -> None:
    seed.completed("order-1")

    ran = oncekey("doctor", f"{url}?synchronous=OFF")

    assert ran.code == 1
    lines = ran.out.splitlines()
    assert lines[2].split() == ["UNSAFE", "durability", "synchronous", "=", "OFF"]
    assert lines[4].strip() == "→ Leave synchronous=OFF out of the URL"
    assert lines[5].strip() == "→ or accept it: add allow=unsafe-durability to the URL"
    assert lines[-1].startswith("1 unsafe, ")


def test_sqlite_that_is_not_synced(doctor: Doctor, seed: Seed, url: str) -> None:
    seed.completed("order-1")
    doctor.refuses(f"{url}?synchronous=OFF", "durability", "synchronous = OFF", "unsafe-durability")
    doctor.advises(f"{url}?synchronous=NORMAL", "durability", "synchronous = NORMAL")


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "sqlite:////nowhere/keys.db", "keys.db"])
def test_what_cannot_be_looked_at(oncekey: Oncekey, url: str) -> None:
    ran = oncekey("doctor", url)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("oncekey: ")


def test_memory_is_for_tests(doctor: Doctor) -> None:
    doctor.advises("memory://", "durability", "kept in this process only")


def test_p12_no_password_is_shown(oncekey: Oncekey, redis_url: str) -> None:
    password = redis_url.split(":")[2].split("@")[0]
    for words in (("doctor", redis_url), ("doctor", "--json", redis_url)):
        assert password not in oncekey(*words).out


def test_a_sealed_store_is_looked_at_with_and_without_its_secrets(
    doctor: Doctor, oncekey: Oncekey, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEKEY_SECRETS", "a secret that is long enough to be one")
    assert oncekey("migrate").code == 0
    with_secrets = doctor.findings(url)
    monkeypatch.delenv("ONCEKEY_SECRETS")
    assert doctor.findings(url).keys() == with_secrets.keys()


# ------------------------------------------------------------------------------------- the records


def test_what_waits_for_somebody_is_told(doctor: Doctor, seed: Seed, hour_ago: Seed) -> None:
    hour_ago.completed("expired", retention_s=60.0)
    hour_ago.running("abandoned", recovery="resume")
    hour_ago.running("lapsed")
    seed.unknown("unknown")

    found = doctor.findings("")

    assert found["sweep"]["level"] == "advice"
    assert "since 59 min" in found["sweep"]["seen"]
    assert found["abandoned"]["seen"].startswith("2 lapsed, 1 waiting for a recoverer, the longest")
    assert "oncekey recover" in found["abandoned"]["do"]
    assert (found["unknown"]["seen"], found["unknown"]["level"]) == ("1", "advice")
    assert found["clock jumps"]["level"] == "fine"


@pytest.mark.slow
def test_growth_is_counted_by_when_records_were_made(
    doctor: Doctor, seed: Seed, hour_ago: Seed
) -> None:
    for number in range(36):
        hour_ago.completed(f"old-{number}")
    for number in range(36):
        seed.completed(f"new-{number}")

    assert "0.01 new records/s in the last hour" in doctor.findings("")["growth"]["seen"]


class HourAhead(SystemClock):
    """What is written by this clock will have been written in an hour."""

    @staticmethod
    def wall() -> float:
        return SystemClock.wall() + 3600


def test_p8_a_clock_that_was_set_back_is_noticed(doctor: Doctor, url: str, tmp_path: Path) -> None:
    seed = Seed(SqliteStore(tmp_path / "keys.db", clock=HourAhead()))
    seed.completed("order-1")
    seed.close()

    found = doctor.findings(url)["clock jumps"]

    assert found["level"] == "advice"
    assert found["seen"].startswith("records dated ahead of the store's clock: 1, by up to")


@pytest.mark.slow
def test_a_sample_stands_for_all(seed: Seed, hour_ago: Seed, tmp_path: Path) -> None:
    for number in range(30):
        seed.completed(f"order-{number}")
    hour_ago.completed("expired", retention_s=60.0)
    line = StoreConnection(SqliteStore(tmp_path / "keys.db"))
    [records] = line.perform([Scan(100)])
    line.close()
    fresh = [record for record in records if not record.expired]
    [expired] = [record for record in records if record.expired]
    survey = Survey(fresh[:20], False, [expired], Size(8_000_000, 10_000))

    found = {each.what: each for each in survey.findings()}

    assert found["records"].seen.startswith("about 10,000; of a sample of 20: 0 % running, 100 %")
    assert found["size"].seen == "8,000,000 bytes, 800 for each record"
    assert found["sweep"].level is Level.ADVICE
    assert found["unknown"].seen == "none in the sample; `oncekey count` counts all"


# ------------------------------------------------------------------------------------------- clock


@pytest.mark.parametrize(
    ("first", "last", "level", "seen"),
    [
        ((100.0, 100.0, 5.0), (101.0, 101.0, 6.0), Level.FINE, "give or take"),
        ((220.0, 100.0, 5.0), (221.0, 101.0, 6.0), Level.ADVICE, "2 min ahead of this host's"),
        ((10.0, 100.0, 5.0), (11.0, 101.0, 6.0), Level.ADVICE, "1 min 30 s behind this host's"),
        ((100.0, 100.0, 5.0), (98.0, 101.0, 6.0), Level.ADVICE, "jumped by -3.0 s"),
        ((100.0, 100.0, 5.0), (161.0, 101.0, 6.0), Level.ADVICE, "jumped by +60.0 s"),
        ((100.0, 100.0, 5.0), (101.0, 900.0, 6.0), Level.ADVICE, "behind this host's"),
    ],
)
def test_p8_the_clocks_are_compared(
    first: tuple[float, float, float],
    last: tuple[float, float, float],
    level: Level,
    seen: str,
) -> None:
    found = compare_clocks(ClockReading(*first, 0.0), ClockReading(*last, 0.0))
    assert found.level is level
    assert seen in found.seen


def test_a_slow_answer_is_no_jump() -> None:
    first, last = ClockReading(100.0, 100.0, 5.0, 0.0), ClockReading(103.0, 101.0, 6.0, 4.0)
    assert compare_clocks(first, last).level is Level.FINE
