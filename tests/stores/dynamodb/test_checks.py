"""What is said of a table in DynamoDB. tests/cli/test_doctor_servers.py looks at a real one."""

from typing import Any

import pytest

from oncekey._core.op import run
from oncekey._system.clock import SystemClock
from oncekey.stores.checks import Finding, Level
from oncekey.stores.dynamodb.checks import Looked, definition, privileges, thorough
from oncekey.stores.dynamodb.statements import Call, Denied
from oncekey.stores.dynamodb.table import Table

TABLE = {**definition("t"), "BillingModeSummary": {"BillingMode": "PAY_PER_REQUEST"}}
BACKUPS = {"PointInTimeRecoveryDescription": {"PointInTimeRecoveryStatus": "ENABLED"}}
LIFE = {"TimeToLiveStatus": "ENABLED", "AttributeName": "ttl"}


def not_fine(looked: Looked) -> dict[str, Finding]:
    return {found.what: found for found in thorough(looked) if found.level is not Level.FINE}


def test_a_table_as_it_should_be() -> None:
    assert not not_fine(Looked(TABLE, BACKUPS, LIFE, emulated=False))


@pytest.mark.parametrize(
    ("looked", "what", "level"),
    [
        (Looked({}, BACKUPS, LIFE, False), "access", Level.ADVICE),
        (Looked({**TABLE, "BillingModeSummary": {}}, None, None, False), "capacity", Level.ADVICE),
        (Looked(TABLE, {}, LIFE, False), "backups", Level.ADVICE),
        (Looked(TABLE, BACKUPS, {"TimeToLiveStatus": "DISABLED"}, False), "time to live", "advice"),
        (Looked(TABLE, BACKUPS, LIFE, True), "durability", Level.ADVICE),
        (Looked({**TABLE, "Replicas": [{}]}, BACKUPS, LIFE, False), "replication", Level.UNSAFE),
        (Looked({**TABLE, "KeySchema": []}, BACKUPS, LIFE, False), "table", Level.UNSAFE),
    ],
)
def test_what_is_told(looked: Looked, what: str, level: Level) -> None:
    [(told, found)] = not_fine(looked).items()
    assert (told, found.level) == (what, level)
    assert found.why
    assert found.do


def test_what_a_user_may_not_do_is_found_without_doing_it() -> None:
    """An emulator allows everything: here the answers are Amazon's, by the words of its manual."""
    asked: list[Call] = []

    def answer(calls: list[Call]) -> list[Any]:
        [call] = calls
        asked.append(call)
        if call.method in ("delete_item", "query"):
            return [Denied("AccessDeniedException", "no", None, (), Exception())]
        if call.method in ("put_item", "update_item"):
            return [Denied("ConditionalCheckFailedException", "no", None, (), Exception())]
        return [{"Items": []}]

    table = Table("t", "dynamodb://t", (), SystemClock())
    denied = run(table._denied(), answer)
    assert denied == ["DeleteItem", "Query"]
    for call in asked:
        if call.method.endswith("_item"):
            assert call.parameters["ConditionExpression"] == "attribute_exists(id)"
    found = privileges(denied)
    assert found.level is Level.UNSAFE
    assert found.do == "Allow dynamodb:DeleteItem, dynamodb:Query on the table and its indexes"
