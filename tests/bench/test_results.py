"""The benchmark reads what its tools print, and writes what it found. Nothing is measured here."""

from collections.abc import Callable

import pytest

from bench import limits, load, table
from bench.rounds import Contender, Contest, Settings, contest, cpu_row
from bench.table import Goal, Row, Section

WRK = """\
Running 1s test @ http://127.0.0.1:60987
  1 threads and 4 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.53ms    1.73ms  12.35ms   84.90%
    Req/Sec     3.79k     0.91k    5.38k    70.00%
  3783 requests in 1.01s, 617.08KB read
Requests/sec:   3749.48
Transfer/sec:    611.61KB
RESULT {"requests": 3783, "seconds": 1.008941, "refused": 2, "broken": 0}
"""
PGBENCH = """\
pgbench (18.6)
transaction type: insert.sql
scaling factor: 1
query mode: prepared
number of clients: 32
number of threads: 2
maximum number of tries: 1
duration: 1 s
number of transactions actually processed: 3405
number of failed transactions: 0 (0.000%)
latency average = 5.657 ms
initial connection time = 423.654 ms
tps = 5657.095293 (without initial connection time)
"""
REDIS_BENCHMARK = """\
"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms"
"EVALSHA d83810 1 oncekey:1f66__rand_int__ rerun 0 ","9074.41","3.348","0.408","2.735","8.695"
"""


def test_wrk() -> None:
    seen = load.parse(WRK)
    assert seen == load.Load(3783, 1.008941, refused=2, broken=0)
    assert seen.rate == pytest.approx(3749.48, abs=0.01)


def test_pgbench() -> None:
    assert limits.parse_pgbench(PGBENCH) == 5657.095293


def test_redis_benchmark() -> None:
    assert limits.parse_redis_benchmark(REDIS_BENCHMARK) == 9074.41


@pytest.mark.parametrize(
    ("parse", "output"),
    [
        (load.parse, "unable to connect to 127.0.0.1:1 Connection refused"),
        (limits.parse_pgbench, "pgbench: error: connection to server failed"),
        (limits.parse_pgbench, PGBENCH.replace("failed transactions: 0", "failed transactions: 7")),
        (limits.parse_redis_benchmark, "Could not connect to Redis at 127.0.0.1:1"),
    ],
)
def test_a_tool_that_failed_gives_no_result(parse: Callable[[str], object], output: str) -> None:
    with pytest.raises(ValueError, match=r"gave no result|pgbench failed"):
        parse(output)


def test_ratios_are_taken_within_rounds() -> None:
    """A neighbour that halves the speed of one whole round changes no ratio."""
    try_rows = Contest({"ours": [400.0, 200.0, 440.0], "limit": [800.0, 400.0, 800.0]}, [1, 60, 3])
    faster = try_rows.row("rate", "ours", "limit", Goal(0.4))
    assert (faster.value, faster.low, faster.high) == (0.5, 0.5, 0.55)
    assert faster.foreign_percent == 3
    slower = try_rows.row("time", "ours", "limit", Goal(1.5, at_least=False, of_time=True))
    assert slower.value == 2.0


def test_cpu_time_is_told_as_how_many_times_as_much() -> None:
    row = cpu_row("CPU", [300.0, 500.0, 400.0], [200.0, 100.0, 200.0])
    assert row.cells()[1:4] == ("400 µs", "200 µs", "2 x (1.5 to 5)")


def test_contenders_take_turns() -> None:
    order: list[str] = []

    def runner(name: str, rate: float) -> Contender:
        def run(seconds: float) -> float:
            order.append(f"{name} {seconds:g}")
            return rate

        return run

    both = {"a": runner("a", 1.0), "b": runner("b", 2.0)}
    try_rows = contest("title", both, Settings(rounds=2, seconds=1.0), turns=2)
    assert order[:2] == ["a 0.25", "b 0.25"]  # warm-up
    assert order[2:6] == ["a 0.5", "b 0.5", "b 0.5", "a 0.5"]
    assert order[6:] == ["b 0.5", "a 0.5", "a 0.5", "b 0.5"]
    assert try_rows.rates == {"a": [1.0, 1.0], "b": [2.0, 2.0]}
    assert len(try_rows.foreign_percent) == 2


ROWS = (
    Row("inserts", "20 k/s", "10 k/s", 2.0, 1.9, 2.1, Goal(2.0), foreign_percent=12.3),
    Row("replays", "5 k/s", "10 k/s", 0.5, 0.4, 0.6, Goal(0.7, aim=1.0), foreign_percent=0.0),
    Row("no key", "1.3 µs", "0.7 µs", 0.6, goal=Goal(2.0, at_least=False, unit="µs"), unit="µs"),
    Row("crowd", goal=Goal(0.6), missing="install redis-tools | it has redis-benchmark"),
)


def test_the_page_tells_results_goals_and_what_is_missing() -> None:
    text = table.page([Section("Stores", "How it was done.", ROWS, "2026-11-15", "2 CPUs.")])
    lines = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line] for line in lines]
    assert cells[0][0] == "what"
    assert cells[2] == ["inserts", "20 k/s", "10 k/s", "2 x (1.9 to 2.1)", "≥ 2 x", "yes", "12 %"]
    assert cells[3][4:] == ["≥ 0.7 x, better 1", "no", "0 %"]
    assert cells[4][3:] == ["0.6 µs", "≤ 2 µs", "yes", ""]
    assert cells[5][3] == "not measured"
    assert "Not measured: crowd: install redis-tools" in text
    assert "2026-11-15, 2 CPUs." in text
    assert len({sum(map(len, line)) for line in lines}) == 1, "the columns do not line up"


def test_results_from_a_busy_machine_say_so() -> None:
    quiet = Section("Stores", "How it was done.", ROWS)
    busy = Section("Stores", "How it was done.", (Row("a", value=1.0, foreign_percent=60.0),))
    assert "measure again" not in quiet.text()
    assert "measure again" in busy.text()


def test_on_a_busy_machine_no_goal_is_met_or_missed() -> None:
    fast = Row("rate", value=3.0, goal=Goal(2.0), foreign_percent=60.0)
    slow = Row("rate", value=1.0, goal=Goal(2.0), foreign_percent=60.0)
    assert (fast.is_met(), slow.is_met()) == ("unsure", "unsure")
    assert (
        Row("memory", value=3.0, goal=Goal(2.0), foreign_percent=60.0, steady=True).is_met()
        == "yes"
    )
    assert Row("rate", value=1.0, goal=Goal(2.0), foreign_percent=10.0).is_met() == "no"


def test_results_survive_as_data() -> None:
    section = Section("Stores", "How it was done.", ROWS, "2026-11-15", "2 CPUs.")
    assert table.load(table.dump([section])) == [section]
