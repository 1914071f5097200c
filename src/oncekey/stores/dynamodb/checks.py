"""The layout of a DynamoDB table, and whether a table is safe to use. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from oncekey._core.values import value
from oncekey.stores import checks
from oncekey.stores.checks import Finding, Risk, Size, advice, unsafe
from oncekey.stores.dynamodb.scan import OPEN, OPEN_SHOWS, TENANTS
from oncekey.stores.dynamodb.statements import Item, b, key

SCHEMA, OLDEST_READER = 1, 1
RISKS = (Risk.GLOBAL_TABLE,)
TTL = "ttl"
_KEYS = {"id": "B", "part": "B", "owner": "B", "open": "N"}


def _schema(partition: str, sort: str) -> list[Item]:
    return [
        {"AttributeName": partition, "KeyType": "HASH"},
        {"AttributeName": sort, "KeyType": "RANGE"},
    ]


def definition(table: str) -> Item:
    """Return the table's definition: on-demand billing, partitioned by record id."""
    return {
        "TableName": table,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [
            {"AttributeName": name, "AttributeType": kind} for name, kind in _KEYS.items()
        ],
        "KeySchema": _schema("id", "part"),
        "GlobalSecondaryIndexes": [
            {
                "IndexName": TENANTS,
                "KeySchema": _schema("owner", "id"),
                "Projection": {"ProjectionType": "KEYS_ONLY"},
            },
            {
                "IndexName": OPEN,
                "KeySchema": _schema("open", "id"),
                "Projection": {
                    "ProjectionType": "INCLUDE",
                    "NonKeyAttributes": list(OPEN_SHOWS),
                },
            },
        ],
    }


def schema(note: Item | None, address: str) -> Finding:
    """Check the schema version that `oncekey migrate` has written to the table."""
    if note is None:
        return checks.schema(None, None, SCHEMA, address)
    version, oldest = int(note["version"]["N"]), int(note["oldest_reader"]["N"])
    return checks.schema(version, oldest, SCHEMA, address)


def findings(table: Item) -> Iterator[Finding]:
    """Yield what decides whether a table may be used, by its description."""
    yield _keys(table)
    yield _regions(table)


def _keys(table: Item) -> Finding:
    expected = definition("any")
    indexes = {index["IndexName"]: index for index in table.get("GlobalSecondaryIndexes", [])}
    kinds = {a["AttributeName"]: a["AttributeType"] for a in table.get("AttributeDefinitions", [])}
    wrong = table.get("KeySchema") != expected["KeySchema"] or any(
        indexes.get(index["IndexName"], {}).get("KeySchema") != index["KeySchema"]
        for index in expected["GlobalSecondaryIndexes"]
    )
    if wrong or any(kinds.get(name) != kind for name, kind in _KEYS.items()):
        return unsafe(
            "table",
            "other keys or indexes than ours",
            "it is not a table that `oncekey migrate` created",
            "Name another table: it is created for you",
        )
    return Finding("table", "keys and indexes as `oncekey migrate` creates them")


def _regions(table: Item) -> Finding:
    if replicas := table.get("Replicas"):
        regions = ", ".join(replica.get("RegionName", "?") for replica in replicas)
        return unsafe(
            "replication",
            f"a global table, also in {regions}",
            "its regions do not wait for each other, so two of them can both own a record",
            "Use a table of one region",
            Risk.GLOBAL_TABLE,
        )
    return Finding("replication", "one region")


# ---------------------------------------------------------------------------------- oncekey doctor

_NONE = key(b"oncekey", b"none")
_NEVER = {"ConditionExpression": "attribute_exists(id)"}
PROBES: dict[str, tuple[str, Item]] = {
    "PutItem": ("put_item", {"Item": _NONE, **_NEVER}),
    "UpdateItem": ("update_item", {"Key": _NONE, **_NEVER}),
    "DeleteItem": ("delete_item", {"Key": _NONE, **_NEVER}),
    "Scan": ("scan", {"Limit": 1}),
    "Query": (
        "query",
        {
            "IndexName": TENANTS,
            "KeyConditionExpression": "#owner = :none",
            "ExpressionAttributeNames": {"#owner": "owner"},
            "ExpressionAttributeValues": {":none": b(b"none")},
            "Limit": 1,
        },
    ),
}
"""Calls that need the same permissions as the verbs, about an item that does not exist."""


@value
class TableInfo:
    """What is known of a table; None or empty where this user may not ask."""

    table: Item
    backups: Item | None
    time_to_live: Item | None
    emulated: bool


def size(table: Item) -> Size:
    note = "as DynamoDB counts about every six hours; records have further items"
    return Size(table.get("TableSizeBytes"), table.get("ItemCount") or None, note)


def privileges(denied: list[str]) -> Finding:
    if denied:
        needed = ", ".join(f"dynamodb:{name}" for name in denied)
        what = f"missing: {', '.join(denied)}"
        do = f"Allow {needed} on the table and its indexes"
        return unsafe("privileges", what, "what needs them fails", do)
    return Finding("privileges", f"{', '.join(PROBES)} are allowed")


def table_findings(info: TableInfo) -> Iterator[Finding]:
    """Yield all findings about a table for `oncekey doctor`."""
    if info.table:
        yield from findings(info.table)
        yield _capacity(info.table)
    else:
        yield advice(
            "access",
            "DescribeTable is not allowed",
            "a global table would not be noticed, neither here nor at startup",
            "Allow dynamodb:DescribeTable on the table",
        )
    yield _durability(info)
    yield Finding("isolation", "one conditional write for each change, consistent reads")
    yield _time_to_live(info.time_to_live)
    yield _backups(info.backups)


def _capacity(table: Item) -> Finding:
    mode = table.get("BillingModeSummary", {}).get("BillingMode", "PROVISIONED")
    if mode == "PROVISIONED":
        return advice(
            "capacity",
            "BillingMode PROVISIONED",
            "what goes beyond it is refused, and after patience_s the request gets 503",
            "Set BillingMode to PAY_PER_REQUEST, or watch ThrottledRequests",
        )
    return Finding("capacity", f"BillingMode {mode}")


def _durability(info: TableInfo) -> Finding:
    if info.emulated:
        return advice(
            "durability",
            "an endpoint that is not Amazon's",
            "what it survives is unknown",
            "Leave endpoint= out of the URL for Amazon's own",
        )
    return Finding("durability", "written in several zones before it is acknowledged")


def _time_to_live(time_to_live: Item | None) -> Finding:
    if time_to_live is None:
        return Finding("time to live", "not checked: DescribeTimeToLive is not allowed")
    status, attribute = (
        time_to_live.get("TimeToLiveStatus", "?"),
        time_to_live.get("AttributeName", TTL),
    )
    if status not in ("ENABLED", "ENABLING") or attribute != TTL:
        return advice(
            "time to live",
            f"{status}, by {attribute}",
            "expired records stay until oncekey's own sweep has read the whole table",
            "Run `oncekey migrate` with this URL",
        )
    return Finding("time to live", f"{status}, by {attribute}")


def _backups(backups: Item | None) -> Finding:
    if backups is None:
        return Finding("backups", "not checked: DescribeContinuousBackups is not allowed")
    status = backups.get("PointInTimeRecoveryDescription", {}).get("PointInTimeRecoveryStatus", "?")
    if status != "ENABLED":
        return advice(
            "backups",
            f"point-in-time recovery {status}",
            "a table that is removed by mistake takes all records with it",
            "Enable point-in-time recovery, and deletion protection",
        )
    return Finding("backups", f"point-in-time recovery {status}")
