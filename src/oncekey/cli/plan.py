"""`plan`: size a store for a load, from what one record was measured to cost."""

from __future__ import annotations

import argparse
import math
import textwrap
from collections.abc import Iterator
from dataclasses import asdict

from oncekey._core.values import value
from oncekey.cli.costs import Cost, Costs, EngineCosts, load_costs
from oncekey.cli.output import duration, print_json, table

ENGINES = ("sqlite", "postgres", "mysql", "redis", "dynamodb")
CONNECTIONS = {"postgres": 7, "mysql": 7, "redis": 7}
"""The most that each process opens."""
BUSY_SHARE = 0.7
"""How busy a CPU may be before requests wait for it."""
NODE_GB = 32.0
PROCESS_RPS = 500.0
"""Requests that one process of an application serves in a second: an assumption, not measured."""
PARTITION_BYTES, PARTITION_UNITS = 10e9, 1000.0
"""What Amazon says that a partition of DynamoDB holds and takes in a second."""
DAY_S = 86_400.0
DAYS_MAX = 100
"""At most so many parts are made (stores/postgres/partitioned.sql): what expires later has none."""
LINE_CHARS_MAX = 110


@value
class Load:
    """The load to plan for."""

    rps: float
    retention_s: float
    answer_bytes: int
    node_gb: float = NODE_GB
    process_rps: float = PROCESS_RPS

    @property
    def records(self) -> int:
        return round(self.rps * self.retention_s)

    @property
    def processes(self) -> int:
        return math.ceil(self.rps / self.process_rps)


@value
class EnginePlan:
    """What one engine needs for a load. None: not measured, or not applicable."""

    engine: str
    bytes_per_record: int
    stored_bytes: int
    index_bytes: int | None
    log_bytes_per_s: int | None
    server_cpus: float | None
    client_cpus: float | None
    connections: int | None
    parts: int | None
    write_units_per_s: int | None
    notes: list[str]


def plan_for(load: Load, measured: EngineCosts) -> EnginePlan:
    """Compute what an engine needs under this load, from the measured cost of a record."""
    cost, records = measured.cost(load.answer_bytes), load.records
    each = CONNECTIONS.get(measured.name)
    needs = EnginePlan(
        engine=measured.name,
        bytes_per_record=round(cost.stored_bytes),
        stored_bytes=round(records * cost.stored_bytes),
        index_bytes=None if cost.index_bytes is None else round(records * cost.index_bytes),
        log_bytes_per_s=None if cost.log_bytes is None else round(load.rps * cost.log_bytes),
        server_cpus=_times(load.rps, cost.server_cpu_us),
        client_cpus=_times(load.rps, cost.client_cpu_us),
        connections=None if each is None else each * load.processes,
        parts=_parts(load, measured.name, cost),
        write_units_per_s=None if cost.write_units is None else round(load.rps * cost.write_units),
        notes=[],
    )
    needs.notes.extend(_notes(load, measured, needs))
    return needs


def _times(rps: float, cpu_us: float | None) -> float | None:
    return None if cpu_us is None else round(rps * cpu_us / 1e6, 2)


def _parts(load: Load, engine: str, cost: Cost) -> int | None:
    stored = load.records * cost.stored_bytes
    match engine:
        case "postgres":  # today's, one for each day on which answers expire, and two ahead
            days = math.ceil(load.retention_s / DAY_S) + 3
            return days if days <= DAYS_MAX else None
        case "redis":  # each node has one thread for commands
            by_memory = stored / (load.node_gb * 1e9 * BUSY_SHARE)
            by_cpu = load.rps * (cost.server_cpu_us or 0) / 1e6 / BUSY_SHARE
            return max(1, math.ceil(by_memory), math.ceil(by_cpu))
        case "dynamodb":
            units = load.rps * (cost.write_units or 0)
            return max(1, math.ceil(stored / PARTITION_BYTES), math.ceil(units / PARTITION_UNITS))
        case _:
            return None


_IN_MEMORY = "the indexes should fit in memory, or each new key reads a page from disk"


def _notes(load: Load, measured: EngineCosts, needs: EnginePlan) -> Iterator[str]:
    """Explain what the numbers mean for this engine, and where they end."""
    if load.answer_bytes > measured.answer_bytes_max:
        yield f"answers were measured up to {measured.answer_bytes_max:,} bytes: extrapolated"
    parts = needs.parts or 0
    match measured.name:
        case "sqlite":
            if (needs.client_cpus or 0) > BUSY_SHARE:
                yield (
                    f"does not fit: one writer at a time has {BUSY_SHARE:g} of a CPU to give, this "
                    f"takes {needs.client_cpus:g}. Use a database server"
                )
            elif load.processes > 1:
                yield (
                    f"not known to fit: {load.processes} processes take turns at writing, and one "
                    "was measured"
                )
            yield "one machine, with all processes on it"
        case "postgres" if needs.parts is None:
            yield (
                f"kept for more than {DAYS_MAX - 3} days, answers gain nothing from parts by day: "
                "stay with the layout inline"
            )
            yield _IN_MEMORY
        case "postgres":
            yield (
                f"{parts} parts are for answers by day, with `oncekey migrate --layout "
                "partitioned`; claims stay in one table. Measured in the layout inline, which has "
                "no parts"
            )
            yield _IN_MEMORY
        case "mysql":
            yield "one primary writes; nothing splits it"
            yield "with a binary log, count the log twice"
        case "redis":
            nodes = "one server" if parts == 1 else f"a Cluster of {parts} primaries"
            yield (
                f"{nodes} with {load.node_gb:g} GB of memory each, {BUSY_SHARE:.0%} of it used, "
                "and as many again for each replica"
            )
        case "dynamodb":
            yield (
                f"{parts} parts are DynamoDB's own, by its published limits (10 GB, 1,000 write "
                "units/s each); a new table on demand needs to be warmed up to that"
            )
            yield "each replay is a conditional write too, and costs what the record weighs"


# -------------------------------------------------------------------------------------------- shown


def plan(args: argparse.Namespace) -> int:
    load = Load(args.rps, args.retention, args.answer_bytes, args.node_gb, args.process_rps)
    costs = load_costs()
    chosen = [args.engine] if args.engine else list(costs.engines)
    plans = [plan_for(load, costs.engines[name]) for name in chosen]
    if args.json:
        about = {name: getattr(costs, name) for name in ("measured", "oncekey", "machine")}
        versions = {name: costs.engines[name].version for name in chosen}
        shown = [asdict(each) for each in plans]
        asking = {**asdict(load), "records": load.records}
        print_json({"load": asking, "costs": {**about, "versions": versions}, "plans": shown})
        return 0
    print(
        f"{load.rps:,g} requests/s with new keys, kept for {duration(load.retention_s)}, answers "
        f"of {load.answer_bytes:,} bytes: {load.records:,} records\n"
    )
    print(table(_HEADER, [_row(each) for each in plans]))
    print("\n" + "\n".join(_below(load, plans, costs)))
    return 0


_HEADER = (
    *("ENGINE", "PER RECORD", "STORED", "OF IT INDEXES", "LOG", "SERVER CPUS", "CLIENT CPUS"),
    *("CONNECTIONS", "PARTS", "WRITE UNITS"),
)


def _row(needs: EnginePlan) -> tuple[object, ...]:
    return (
        needs.engine,
        f"{needs.bytes_per_record:,} B",
        _size(needs.stored_bytes),
        _size(needs.index_bytes),
        "-" if needs.log_bytes_per_s is None else f"{_size(needs.log_bytes_per_s)}/s",
        "-" if needs.server_cpus is None else f"{needs.server_cpus:.2g}",
        "-" if needs.client_cpus is None else f"{needs.client_cpus:.2g}",
        "-" if needs.connections is None else str(needs.connections),
        "-" if needs.parts is None else str(needs.parts),
        "-" if needs.write_units_per_s is None else f"{needs.write_units_per_s:,}/s",
    )


def _size(count: float | None) -> str:
    if count is None:
        return "-"
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _below(load: Load, plans: list[EnginePlan], costs: Costs) -> Iterator[str]:
    for needs in plans:
        for note in needs.notes:
            yield from _wrap(f"{needs.engine}: {note}")
    yield from _wrap(
        f"connections: {load.processes:,} processes, if each serves "
        f"{load.process_rps:,g} requests/s (--process-rps), with up to seven each"
    )
    yield ""
    yield from _wrap(
        f"Measured {costs.measured} with oncekey {costs.oncekey} on {costs.machine}, by "
        f"`{costs.written_by}`:"
    )
    for needs in plans:
        cost = costs.engines[needs.engine]
        yield from _wrap(
            f"{needs.engine}: {cost.version}, {cost.settings}, {cost.records:,} records, others "
            f"used {cost.others_cpu_percent:.0f} % of the CPUs meanwhile"
        )
    yield ""
    yield from _wrap(_NOT_MEASURED)


_NOT_MEASURED = (
    "Not measured here: replays and refusals (they write nothing, except on DynamoDB, and on "
    "MariaDB and MySQL without a binary log), steps and kept requests, the room that updated and "
    "deleted rows take until they are cleared away (leave a third), replicas and backups, how much "
    "more CPU so many records take, and your disk, which has to take the log and its syncs. Client "
    "CPUs are oncekey's engine and driver alone, without your framework. CPUs are those of the "
    "machine above: measure on yours before you buy."
)


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, LINE_CHARS_MAX, subsequent_indent="  ", break_on_hyphens=False)
