"""Findings about a DynamoDB table. tests/cli/test_doctor_servers.py checks a real one."""

from typing import Any

import pytest

from oncekey._core.op import run
from oncekey._system.clock import SystemClock
from oncekey.stores.checks import Finding, Level
from oncekey.stores.dynamodb.checks import TableInfo, definition, privileges, table_findings
from oncekey.stores.dynamodb.statements import ApiCall, ErrorResponse
from oncekey.stores.dynamodb.table import Table

TABLE = {**definition("t"), "BillingModeSummary": {"BillingMode": "PAY_PER_REQUEST"}}
BACKUPS = {"PointInTimeRecoveryDescription": {"PointInTimeRecoveryStatus": "ENABLED"}}
LIFE = {"TimeToLiveStatus": "ENABLED", "AttributeName": "ttl"}


def problems(info: TableInfo) -> dict[str, Finding]:
    return {found.what: found for found in table_findings(info) if found.level is not Level.FINE}


def test_a_table_as_it_should_be() -> None:
    assert not problems(TableInfo(TABLE, BACKUPS, LIFE, emulated=False))


@pytest.mark.parametrize(
    ("info", "what", "level"),
    [
        (TableInfo({}, BACKUPS, LIFE, False), "access", Level.ADVICE),
        (
            TableInfo({**TABLE, "BillingModeSummary": {}}, None, None, False),
            "capacity",
            Level.ADVICE,
        ),
        (TableInfo(TABLE, {}, LIFE, False), "backups", Level.ADVICE),
        (
            TableInfo(TABLE, BACKUPS, {"TimeToLiveStatus": "DISABLED"}, False),
            "time to live",
            "advice",
        ),
        (TableInfo(TABLE, BACKUPS, LIFE, True), "durability", Level.ADVICE),
        (TableInfo({**TABLE, "Replicas": [{}]}, BACKUPS, LIFE, False), "replication", Level.UNSAFE),
        (TableInfo({**TABLE, "KeySchema": []}, BACKUPS, LIFE, False), "table", Level.UNSAFE),
    ],
)
def test_what_is_told(info: TableInfo, what: str, level: Level) -> None:
    [(what_found, found)] = problems(info).items()
    assert (what_found, found.level) == (what, level)
    assert found.why
    assert found.do


def test_what_a_user_may_not_do_is_found_without_doing_it() -> None:
    """An emulator allows everything: here the responses are Amazon's, as in its manual."""
    asked: list[ApiCall] = []

    def answer(calls: list[ApiCall]) -> list[Any]:
        [call] = calls
        asked.append(call)
        if call.method in ("delete_item", "query"):
            return [ErrorResponse("AccessDeniedException", "no", None, (), Exception())]
        if call.method in ("put_item", "update_item"):
            return [ErrorResponse("ConditionalCheckFailedException", "no", None, (), Exception())]
        return [{"Items": []}]

    table = Table("t", "dynamodb://t", (), SystemClock())
    denied = run(table._missing_permissions(), answer)
    assert denied == ["DeleteItem", "Query"]
    for call in asked:
        if call.method.endswith("_item"):
            assert call.parameters["ConditionExpression"] == "attribute_exists(id)"
    found = privileges(denied)
    assert found.level is Level.UNSAFE
    assert found.do == "Allow dynamodb:DeleteItem, dynamodb:Query on the table and its indexes"
