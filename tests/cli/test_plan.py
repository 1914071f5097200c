"""How large a store has to be: by what was measured, and plain about what was not."""

import json
from datetime import UTC, date, datetime
from importlib import resources

import pytest

from oncekey.cli import parsing
from oncekey.cli.costs import Cost, EngineCosts, load_costs
from oncekey.cli.plan import ENGINES, Load, plan_for
from tests.cli.conftest import Oncekey

DAY_S = 86_400.0
BIG = Load(10_000, DAY_S, 800)


def engine_costs(name: str, *, units: float | None = None) -> EngineCosts:
    """Costs that can be reckoned in one's head."""
    short = Cost(400.0, 100.0, 1_000.0, 40.0, 50.0, units)
    long = Cost(2_400.0, 100.0, 3_000.0, 80.0, 90.0, units)
    return EngineCosts(name, "1.0", "synced", 10_000, 3.0, [(0, short), (2_000, long)])


# ------------------------------------------------------------------------------------------- costs


@pytest.mark.parametrize(
    ("answer_bytes", "stored", "cpu"),
    [(0, 400.0, 40.0), (800, 1_200.0, 56.0), (2_000, 2_400.0, 80.0), (4_000, 4_400.0, 120.0)],
)
def test_what_was_not_measured_lies_on_the_line(
    answer_bytes: int, stored: float, cpu: float
) -> None:
    cost = engine_costs("postgres").cost(answer_bytes)
    assert (cost.stored_bytes, cost.server_cpu_us) == (stored, cpu)
    assert cost.write_units is None


def test_between_many_lengths_the_nearest_two_count() -> None:
    points = [(size, Cost(float(size * size), None, None, None, None, None)) for size in range(5)]
    many = EngineCosts("sqlite", "1.0", "", 1, 0.0, points)
    assert [many.cost(size).stored_bytes for size in range(6)] == [0, 1, 4, 9, 16, 23]


def test_the_costs_that_are_shipped_were_measured() -> None:
    costs = load_costs()
    assert date.fromisoformat(costs.measured) <= datetime.now(UTC).date()
    assert costs.written_by == "./dev bench --only bytes"
    assert tuple(costs.engines) == ENGINES
    for engine in costs.engines.values():
        assert engine.version
        sizes = [size for size, _ in engine.points]
        assert sizes == sorted(sizes)
        assert len(sizes) >= 3
        assert all(cost.stored_bytes > size for size, cost in engine.points)


def test_the_costs_are_data_and_hold_no_place_of_a_machine() -> None:
    text = resources.files("oncekey.cli").joinpath("costs.json").read_text("utf-8")
    assert json.loads(text)["engines"]
    assert "/home" not in text
    assert "/tmp" not in text  # noqa: S108


# -------------------------------------------------------------------------------------------- plans


def test_records_bytes_and_rates() -> None:
    made = plan_for(BIG, engine_costs("postgres"))
    assert BIG.records == 864_000_000
    assert made.bytes_per_record == 1_200
    assert made.stored_bytes == 864_000_000 * 1_200
    assert made.index_bytes == 864_000_000 * 100
    assert made.log_bytes_per_s == 18_000_000
    assert made.server_cpus == 0.56
    assert made.client_cpus == 0.66
    assert made.connections == 7 * 20


@pytest.mark.parametrize(
    ("retention_s", "parts"), [(3_600.0, 4), (DAY_S, 4), (DAY_S + 1, 5), (30 * DAY_S, 33)]
)
def test_answers_in_postgres_have_a_part_for_each_day(retention_s: float, parts: int) -> None:
    assert plan_for(Load(10, retention_s, 800), engine_costs("postgres")).parts == parts


def test_answers_that_are_kept_for_longer_than_postgres_makes_parts_have_none(
    oncekey: Oncekey,
) -> None:
    assert plan_for(Load(10, 97 * DAY_S, 800), engine_costs("postgres")).parts == 100
    assert plan_for(Load(10, 97 * DAY_S + 1, 800), engine_costs("postgres")).parts is None
    said = oncekey("plan", "--rps", "10", "--retention", "365d", "--engine", "postgres").out
    assert "stay with the layout inline" in said
    assert "--layout partitioned" not in said


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--rps", "0"), "more than 0, at most 10,000,000"),
        (("--rps", "1", "--answer-bytes", "-1"), "not below 0, at most 100,000,000"),
        (("--rps", "1", "--retention", "4000d"), "up to ten years"),
    ],
)
def test_what_cannot_be_planned_is_refused_with_what_can(
    oncekey: Oncekey, given: tuple[str, ...], said: str
) -> None:
    refused = oncekey("plan", *given)
    assert refused.code == 2
    assert said in refused.err


def test_redis_is_split_by_memory_or_by_its_one_thread() -> None:
    assert plan_for(BIG, engine_costs("redis")).parts == 47  # 1,037 GB in 32 GB each, 70 % of it
    assert plan_for(Load(10_000, DAY_S, 800, node_gb=64), engine_costs("redis")).parts == 24
    busy = Load(100_000, 60.0, 800)
    assert plan_for(busy, engine_costs("redis")).parts == 8  # 5.6 CPUs, 70 % of each
    assert plan_for(Load(1, 60.0, 800), engine_costs("redis")).parts == 1


def test_dynamodb_is_split_by_size_or_by_writes() -> None:
    made = plan_for(BIG, engine_costs("dynamodb", units=4.0))
    assert made.write_units_per_s == 40_000
    assert made.parts == 104  # 1,037 GB in parts of 10 GB
    assert plan_for(Load(10_000, 60.0, 800), engine_costs("dynamodb", units=4.0)).parts == 40


def test_what_one_writer_cannot_do_does_not_fit() -> None:
    fits = plan_for(Load(400, DAY_S, 800), engine_costs("sqlite"))
    unknown = plan_for(Load(1_000, DAY_S, 800), engine_costs("sqlite"))
    does_not = plan_for(Load(20_000, DAY_S, 800), engine_costs("sqlite"))
    assert fits.notes == ["one machine, with all processes on it"]
    assert unknown.notes[0].startswith("not known to fit: 2 processes take turns")
    assert does_not.notes[0].startswith("does not fit: one writer at a time")


def test_longer_answers_than_were_measured_are_named() -> None:
    made = plan_for(Load(10, DAY_S, 9_000), engine_costs("redis"))
    assert made.notes[0] == "answers were measured up to 2,000 bytes: extrapolated"


# ------------------------------------------------------------------------------------- the command


def test_the_command_shows_all_engines_and_how_they_were_measured(oncekey: Oncekey) -> None:
    ran = oncekey(*["plan", "--rps", "10000", "--retention", "24h", "--answer-bytes", "800"])

    assert ran.code == 0
    assert "864,000,000 records" in ran.out
    rows = {line.split()[0]: line for line in ran.out.splitlines() if line}
    assert set(ENGINES) <= set(rows)
    costs = load_costs()
    assert f"Measured {costs.measured} with oncekey {costs.oncekey}" in ran.out
    for engine in costs.engines.values():
        assert engine.version in ran.out
    assert "Not measured here: replays" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 120


def test_one_engine_as_data(oncekey: Oncekey) -> None:
    ran = oncekey(*["plan", "--rps", "50", "--retention", "7d", "--engine", "redis", "--json"])

    assert ran.json["load"]["records"] == 50 * 7 * 86_400
    [made] = ran.json["plans"]
    assert made["engine"] == "redis"
    assert made["stored_bytes"] > 50 * 7 * 86_400 * 800
    assert ran.json["costs"]["measured"] == load_costs().measured


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90.0), ("30m", 1_800.0), ("24h", 86_400.0), ("7d", 604_800.0)]
)
def test_times(text: str, seconds: float) -> None:
    assert parsing.duration(text) == seconds


@pytest.mark.parametrize(
    "words", ["--rps 0", "--rps many", "--rps 5 --retention 24", "--rps 5 --engine mongodb", ""]
)
def test_what_cannot_be_reckoned_with(oncekey: Oncekey, words: str) -> None:
    ran = oncekey("plan", *words.split())
    assert (ran.code, ran.out) == (2, "")
