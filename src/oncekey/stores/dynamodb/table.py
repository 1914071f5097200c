"""The DynamoDB table: `oncekey migrate` creates it, every connection checks it. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from oncekey._core.op import Op, Pause
from oncekey._system.clock import Clock
from oncekey.errors import StoreError, StoreUnavailable, StoreUnfit
from oncekey.stores.checks import Examination, parse_risks, refuse_unsafe
from oncekey.stores.dynamodb import checks
from oncekey.stores.dynamodb.checks import OLDEST_READER, SCHEMA, TTL, definition
from oncekey.stores.dynamodb.scan import OPEN, TENANTS
from oncekey.stores.dynamodb.statements import (
    ACCESS_DENIED,
    MISSING,
    ApiCall,
    ErrorResponse,
    Item,
    key,
    n,
    to_store_error,
)

_SCHEMA_KEY = key(b"oncekey", b"schema")
_POLLS_MAX, _POLL_S = 120, 0.5
CHECK_EVERY_S = 60.0


class Table:
    """Creates and checks one table."""

    def __init__(self, name: str, address: str, allow: Collection[str], clock: Clock) -> None:
        self._name = name
        self._address = address
        self.allowed = parse_risks(allow, checks.RISKS)
        self._clock = clock
        self._checked_at: float | None = None

    # ------------------------------------------------------------------------------------ calls

    def _ask(self, method: str, **parameters: Any) -> Op[Item | ErrorResponse]:
        [answer] = yield [ApiCall(method, {"TableName": self._name, **parameters})]
        if isinstance(answer, StoreError):
            raise answer
        found: Item | ErrorResponse = answer
        return found

    def _ask_or_raise(self, method: str, **parameters: Any) -> Op[Item]:
        answer = yield from self._ask(method, **parameters)
        if isinstance(answer, ErrorResponse):
            raise self.to_store_error(answer)
        return answer

    def to_store_error(self, error: ErrorResponse) -> StoreError:
        """Translate an error that is not an outcome of a verb."""
        return to_store_error(error, self._address)

    # ----------------------------------------------------------------------------------- checks

    def prepare(self) -> Op[None]:
        """Check the schema version, and that the table is written in one region only. A check by
        another connection within the last minute counts for this one too.
        """
        now = self._clock.monotonic()
        if self._checked_at is not None and now - self._checked_at < CHECK_EVERY_S:
            return
        yield from self._check()
        self._checked_at = now

    def _check(self) -> Op[None]:
        note = yield from self._read_schema()
        refuse_unsafe([checks.schema(note, self._address)], self._address, ())
        answer = yield from self._ask("describe_table")
        if not isinstance(answer, ErrorResponse):
            refuse_unsafe(checks.findings(answer["Table"]), self._address, self.allowed)
        elif answer.code not in ACCESS_DENIED:  # only this check needs it
            raise self.to_store_error(answer)

    def _read_schema(self) -> Op[Item | None]:
        answer = yield from self._ask_or_raise("get_item", Key=_SCHEMA_KEY, ConsistentRead=True)
        found: Item | None = answer.get("Item")
        return found

    def ping(self) -> Op[None]:
        """Get any response, even an error: it has a date."""
        yield from self._ask("get_item", Key=_SCHEMA_KEY)

    def examine(self, emulated: bool) -> Op[Examination]:
        """Report everything, including what is no reason to refuse the table."""
        answer = yield from self._ask("describe_table")
        if isinstance(answer, ErrorResponse) and answer.code == MISSING:
            absent = checks.schema(None, self._address)
            return Examination("DynamoDB", [absent], readable=False)
        table: Item = {} if isinstance(answer, ErrorResponse) else answer["Table"]
        note = yield from self._read_schema()
        backups = yield from self._ask("describe_continuous_backups")
        time_to_live = yield from self._ask("describe_time_to_live")
        info = checks.TableInfo(
            table,
            None if isinstance(backups, ErrorResponse) else backups["ContinuousBackupsDescription"],
            None
            if isinstance(time_to_live, ErrorResponse)
            else time_to_live["TimeToLiveDescription"],
            emulated,
        )
        findings = [checks.schema(note, self._address), *checks.table_findings(info)]
        findings.append(checks.privileges((yield from self._missing_permissions())))
        return Examination("DynamoDB", findings, checks.size(table), note is not None)

    def _missing_permissions(self) -> Op[list[str]]:
        """Return what this user may not do. The conditions never hold, so nothing is written."""
        denied = []
        for name, (method, parameters) in checks.PROBES.items():
            answer = yield from self._ask(method, **parameters)
            if isinstance(answer, ErrorResponse) and answer.code in ACCESS_DENIED:
                denied.append(name)
        return denied

    # -------------------------------------------------------------------------------- migrating

    def migrate(self) -> Op[list[str]]:
        made = []
        answer = yield from self._ask("describe_table")
        if isinstance(answer, ErrorResponse) and answer.code == MISSING:
            created = yield from self._ask("create_table", **definition(self._name))
            if not isinstance(created, ErrorResponse):
                made.append(f"table {self._name} with the indexes {TENANTS} and {OPEN}")
            elif created.code != "ResourceInUseException":  # else another process is creating it
                raise self.to_store_error(created)
        elif isinstance(answer, ErrorResponse):
            raise self.to_store_error(answer)
        table = yield from self._active()
        refuse_unsafe(checks.findings(table), self._address, self.allowed)
        made += yield from self._time_to_live()
        note = {**_SCHEMA_KEY, "version": n(SCHEMA), "oldest_reader": n(OLDEST_READER)}
        written = yield from self._ask(
            "put_item",
            Item=note,
            ConditionExpression="attribute_not_exists(id) OR version < :ours",
            ExpressionAttributeValues={":ours": n(SCHEMA)},
        )
        if not isinstance(written, ErrorResponse):
            made.append(f"schema {SCHEMA}")
        elif not written.is_condition_failure:
            raise self.to_store_error(written)
        return made

    def _active(self) -> Op[Item]:
        """Wait until the table and its indexes can be used, and return it."""
        for _ in range(_POLLS_MAX):
            table: Item = (yield from self._ask_or_raise("describe_table"))["Table"]
            indexes = table.get("GlobalSecondaryIndexes", [])
            states = [table["TableStatus"], *(index.get("IndexStatus") for index in indexes)]
            if all(state in ("ACTIVE", "UPDATING") for state in states):
                return table
            yield Pause(_POLL_S)
        raise StoreUnavailable(
            f"{self._address} is still being created after {_POLLS_MAX * _POLL_S:g} s: run this "
            "command again"
        )

    def _time_to_live(self) -> Op[list[str]]:
        found = yield from self._ask_or_raise("describe_time_to_live")
        current = found["TimeToLiveDescription"]
        if current.get("TimeToLiveStatus") in ("ENABLED", "ENABLING"):
            if current.get("AttributeName") not in (None, TTL):
                raise StoreUnfit(
                    f"{self._address} removes items by its attribute {current['AttributeName']!r}, "
                    f"not by {TTL!r}: give the records a table of their own"
                )
            return []
        yield from self._ask_or_raise(
            "update_time_to_live",
            TimeToLiveSpecification={"Enabled": True, "AttributeName": TTL},
        )
        return [f"time to live by the attribute {TTL}"]
