"""What is asked of DynamoDB, and what it answers, as values. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from oncekey._core.values import value

Item = dict[str, Any]

RECORD = b"r"


@value
class Call:
    """One request to DynamoDB: a method of its client, and its parameters."""

    method: str
    parameters: Mapping[str, Any]


@value
class Denied:
    """What DynamoDB answered instead of doing it."""

    code: str
    message: str
    item: Item | None = None
    """The item that stands there, where a condition did not hold."""
    reasons: tuple[tuple[str, Item | None], ...] = ()
    """Of a transaction: for each of its members a code and the item that stands there."""
    cause: Exception | None = None
    """The driver's own, for those who know it."""
    status: int = 0
    """That of HTTP, where there was one: what stands in between may answer too."""

    @property
    def by_condition(self) -> bool:
        return self.code == "ConditionalCheckFailedException"


# ----------------------------------------------------------------------------- attribute values


def n(number: float) -> Item:
    """Written as DynamoDB itself would: 30, not 30.0."""
    return {"N": repr(int(number) if number == int(number) else number)}


def b(data: bytes) -> Item:
    return {"B": data}


def s(text: str) -> Item:
    return {"S": text}


def text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def key(record_id: bytes, part: bytes = RECORD) -> Item:
    return {"id": b(record_id), "part": b(part)}


# -------------------------------------------------------------------------------- expressions


class Update:
    """An update expression with its condition, built up attribute by attribute."""

    def __init__(self) -> None:
        self.sets: dict[str, Item | str] = {}
        self.removes: dict[str, None] = {}
        self._conditions: list[str] = []
        self._values: Item = {}
        self._names: dict[str, str] = {}

    def set(self, **values: Item | str) -> None:
        """A value, or an expression that is written with `name` and `given`."""
        for attribute, found in values.items():
            self.removes.pop(attribute, None)
            self.sets[attribute] = found

    def remove(self, *attributes: str) -> None:
        for attribute in attributes:
            self.sets.pop(attribute, None)
            self.removes[attribute] = None

    def only_if(self, condition: str) -> None:
        self._conditions.append(condition)

    def equal(self, **values: Item) -> None:
        for attribute, found in values.items():
            self.only_if(f"{self.name(attribute)} = {self.given(f'is_{attribute}', found)}")

    def name(self, attribute: str) -> str:
        """Every name is written as a variable: DynamoDB reserves some 570 words."""
        self._names[f"#{attribute}"] = attribute
        return f"#{attribute}"

    def given(self, variable: str, found: Item) -> str:
        self._values[f":{variable}"] = found
        return f":{variable}"

    def condition(self) -> Item:
        """Of a check or a deletion, which write nothing."""
        return self._with({"ConditionExpression": " AND ".join(self._conditions)})

    def parameters(self) -> Item:
        clauses = []
        if self.sets:
            assignments = [self._assigned(*pair) for pair in self.sets.items()]
            clauses.append(f"SET {', '.join(assignments)}")
        if self.removes:
            clauses.append(f"REMOVE {', '.join(map(self.name, self.removes))}")
        found = {"UpdateExpression": " ".join(clauses)}
        if self._conditions:
            found["ConditionExpression"] = " AND ".join(self._conditions)
        return self._with(found)

    def _assigned(self, attribute: str, found: Item | str) -> str:
        expression = found if isinstance(found, str) else self.given(f"new_{attribute}", found)
        return f"{self.name(attribute)} = {expression}"

    def _with(self, found: Item) -> Item:
        found["ExpressionAttributeNames"] = self._names
        if self._values:
            found["ExpressionAttributeValues"] = self._values
        return found


def projection(attributes: Iterable[str]) -> Item:
    names = {f"#{attribute}": attribute for attribute in attributes}
    return {"ProjectionExpression": ", ".join(names), "ExpressionAttributeNames": names}
