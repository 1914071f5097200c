"""The table in DynamoDB: how `oncekey migrate` makes it, and how it is looked at. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from oncekey._core.op import Op, Pause
from oncekey._system.clock import Clock
from oncekey.errors import StoreError, StoreUnavailable, StoreUnfit
from oncekey.stores.checks import Examination, allowed, insist
from oncekey.stores.dynamodb import checks as fitness
from oncekey.stores.dynamodb.checks import OLDEST_READER, SCHEMA, TTL, definition
from oncekey.stores.dynamodb.scan import OPEN, TENANTS
from oncekey.stores.dynamodb.statements import Call, Denied, Item, key, n

_NOTE = key(b"oncekey", b"schema")
_LOOKS_MAX, _LOOK_S = 120, 0.5
CHECK_EVERY_S = 60.0

_MISSING = "ResourceNotFoundException"
_DENIED = ("AccessDeniedException", "UnrecognizedClientException")


class Table:
    """One table: made, and looked at."""

    def __init__(self, name: str, address: str, allow: Collection[str], clock: Clock) -> None:
        self._name = name
        self._address = address
        self.allowed = allowed(allow, fitness.RISKS)
        self._clock = clock
        self._checked_at: float | None = None

    # ---------------------------------------------------------------------------------- asking

    def _ask(self, method: str, **parameters: Any) -> Op[Item | Denied]:
        [answer] = yield [Call(method, {"TableName": self._name, **parameters})]
        if isinstance(answer, StoreError):
            raise answer
        found: Item | Denied = answer
        return found

    def _must(self, method: str, **parameters: Any) -> Op[Item]:
        answer = yield from self._ask(method, **parameters)
        if isinstance(answer, Denied):
            raise self.judged(answer)
        return answer

    def judged(self, denied: Denied) -> StoreError:
        """What an answer means that is no outcome of a verb."""
        return judged(denied, self._address)

    # ----------------------------------------------------------------------------------- fitness

    def prepare(self) -> Op[None]:
        """Check the schema's number, and that nobody writes to the table elsewhere. What another
        connection has just found out counts for this one too.
        """
        now = self._clock.monotonic()
        if self._checked_at is not None and now - self._checked_at < CHECK_EVERY_S:
            return
        yield from self._check()
        self._checked_at = now

    def _check(self) -> Op[None]:
        note = yield from self._note()
        insist([fitness.schema(note, self._address)], self._address, ())
        told = yield from self._ask("describe_table")
        if not isinstance(told, Denied):
            insist(fitness.findings(told["Table"]), self._address, self.allowed)
        elif told.code not in _DENIED:  # it is needed for nothing else
            raise self.judged(told)

    def _note(self) -> Op[Item | None]:
        answer = yield from self._must("get_item", Key=_NOTE, ConsistentRead=True)
        found: Item | None = answer.get("Item")
        return found

    def glance(self) -> Op[None]:
        """Any answer, also a refusal: it bears a date."""
        yield from self._ask("get_item", Key=_NOTE)

    def examine(self, emulated: bool) -> Op[Examination]:
        """Everything: also what is no reason to refuse the table."""
        told = yield from self._ask("describe_table")
        if isinstance(told, Denied) and told.code == _MISSING:
            absent = fitness.schema(None, self._address)
            return Examination("DynamoDB", [absent], readable=False)
        table: Item = {} if isinstance(told, Denied) else told["Table"]
        note = yield from self._note()
        backups = yield from self._ask("describe_continuous_backups")
        life = yield from self._ask("describe_time_to_live")
        looked = fitness.Looked(
            table,
            None if isinstance(backups, Denied) else backups["ContinuousBackupsDescription"],
            None if isinstance(life, Denied) else life["TimeToLiveDescription"],
            emulated,
        )
        findings = [fitness.schema(note, self._address), *fitness.thorough(looked)]
        findings.append(fitness.privileges((yield from self._denied())))
        return Examination("DynamoDB", findings, fitness.size(table), note is not None)

    def _denied(self) -> Op[list[str]]:
        """What this user may not do. The conditions never hold, so nothing is written."""
        denied = []
        for name, (method, parameters) in fitness.PROBES.items():
            answer = yield from self._ask(method, **parameters)
            if isinstance(answer, Denied) and answer.code in _DENIED:
                denied.append(name)
        return denied

    # -------------------------------------------------------------------------------- migrating

    def migrate(self) -> Op[list[str]]:
        made = []
        answer = yield from self._ask("describe_table")
        if isinstance(answer, Denied) and answer.code == _MISSING:
            created = yield from self._ask("create_table", **definition(self._name))
            if not isinstance(created, Denied):
                made.append(f"table {self._name} with the indexes {TENANTS} and {OPEN}")
            elif created.code != "ResourceInUseException":  # else somebody else makes it too
                raise self.judged(created)
        elif isinstance(answer, Denied):
            raise self.judged(answer)
        table = yield from self._active()
        insist(fitness.findings(table), self._address, self.allowed)
        made += yield from self._time_to_live()
        note = {**_NOTE, "version": n(SCHEMA), "oldest_reader": n(OLDEST_READER)}
        noted = yield from self._ask(
            "put_item",
            Item=note,
            ConditionExpression="attribute_not_exists(id) OR version < :ours",
            ExpressionAttributeValues={":ours": n(SCHEMA)},
        )
        if not isinstance(noted, Denied):
            made.append(f"schema {SCHEMA}")
        elif not noted.by_condition:
            raise self.judged(noted)
        return made

    def _active(self) -> Op[Item]:
        """The table, once it and its indexes can be used."""
        for _ in range(_LOOKS_MAX):
            table: Item = (yield from self._must("describe_table"))["Table"]
            indexes = table.get("GlobalSecondaryIndexes", [])
            states = [table["TableStatus"], *(index.get("IndexStatus") for index in indexes)]
            if all(state in ("ACTIVE", "UPDATING") for state in states):
                return table
            yield Pause(_LOOK_S)
        raise StoreUnavailable(
            f"{self._address} is still being made after {_LOOKS_MAX * _LOOK_S:g} s: run it again"
        )

    def _time_to_live(self) -> Op[list[str]]:
        found = yield from self._must("describe_time_to_live")
        told = found["TimeToLiveDescription"]
        if told.get("TimeToLiveStatus") in ("ENABLED", "ENABLING"):
            if told.get("AttributeName") not in (None, TTL):
                raise StoreUnfit(
                    f"{self._address} removes items by its attribute {told['AttributeName']!r}, "
                    f"not by {TTL!r}: give the records a table of their own"
                )
            return []
        yield from self._must(
            "update_time_to_live",
            TimeToLiveSpecification={"Enabled": True, "AttributeName": TTL},
        )
        return [f"time to live by the attribute {TTL}"]


# ------------------------------------------------------------------------------ while it runs

THROTTLED = frozenset(
    {
        "ProvisionedThroughputExceededException",
        "ThrottlingException",
        "ThrottlingError",
        "Throttling",
        "RequestLimitExceeded",
        "ProvisionedThroughputExceeded",
    }
)
CONFLICTS = frozenset(
    {"TransactionConflictException", "TransactionConflict", "TransactionInProgressException"}
)
_BROKEN = ("InternalServerError", "ServiceUnavailable", "InternalFailure")


def codes(denied: Denied) -> frozenset[str]:
    """What it failed for: a transaction has a reason for each of its members."""
    reasons = frozenset(code for code, _ in denied.reasons) - {"None"}
    return reasons or frozenset((denied.code,))


def passes(denied: Denied) -> bool:
    """Whether nothing was carried out and the same question may succeed in a moment."""
    return bool(codes(denied) & (THROTTLED | CONFLICTS))


def judged(denied: Denied, address: str) -> StoreError:
    """What a denial means for the store, and what to do about it."""
    why = f"{address}: {denied.message} ({', '.join(sorted(codes(denied)))})"
    if denied.code == _MISSING:
        return StoreUnfit(f"{why}: run `oncekey migrate {address}`")
    if passes(denied):
        return StoreUnavailable(f"{why}: it takes no more for the moment", sent=False)
    if denied.code in _BROKEN or denied.status >= 500:
        return StoreUnavailable(why, sent=True)
    if denied.code in _DENIED or "Signature" in denied.code or "Token" in denied.code:
        return StoreUnfit(f"{why}: see to its credentials and permissions (docs/stores.md)")
    return StoreError(why)
