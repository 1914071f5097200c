"""Requests to DynamoDB and their responses, as values. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from oncekey._core.values import value
from oncekey.errors import StoreError, StoreUnavailable, StoreUnfit

Item = dict[str, Any]

RECORD = b"r"


@value
class ApiCall:
    """One request to DynamoDB: a method of its client, and its parameters."""

    method: str
    parameters: Mapping[str, Any]


@value
class ErrorResponse:
    """An error that DynamoDB answered with."""

    code: str
    message: str
    item: Item | None = None
    """The item found, where a condition failed."""
    reasons: tuple[tuple[str, Item | None], ...] = ()
    """For a transaction: a code and the item found for each of its members."""
    cause: Exception | None = None
    """The driver's exception."""
    status: int = 0
    """The HTTP status, where there was one: a proxy in between may answer too."""

    @property
    def is_condition_failure(self) -> bool:
        return self.code == "ConditionalCheckFailedException"


# -------------------------------------------------------------------------------------- errors

MISSING = "ResourceNotFoundException"
ACCESS_DENIED = ("AccessDeniedException", "UnrecognizedClientException")
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


def codes(error: ErrorResponse) -> frozenset[str]:
    """Return the error codes: a transaction has one for each of its members."""
    reasons = frozenset(code for code, _ in error.reasons) - {"None"}
    return reasons or frozenset((error.code,))


def is_transient(error: ErrorResponse) -> bool:
    """Return whether nothing was carried out and a retry may soon succeed."""
    return bool(codes(error) & (THROTTLED | CONFLICTS))


def to_store_error(error: ErrorResponse, address: str) -> StoreError:
    """Translate an error into what it means for the store, and what to do about it."""
    why = f"{address}: {error.message} ({', '.join(sorted(codes(error)))})"
    if error.code == MISSING:
        return StoreUnfit(f"{why}: run `oncekey migrate {address}`")
    if is_transient(error):
        return StoreUnavailable(f"{why}: it takes no more for the moment", sent=False)
    if error.code in _BROKEN or error.status >= 500:
        return StoreUnavailable(why, sent=True)
    if error.code in ACCESS_DENIED or "Signature" in error.code or "Token" in error.code:
        return StoreUnfit(f"{why}: see to its credentials and permissions (docs/stores.md)")
    return StoreError(why)


# ----------------------------------------------------------------------------- attribute values


def n(number: float) -> Item:
    """Format a number as DynamoDB itself does: 30, not 30.0."""
    return {"N": repr(int(number) if number == int(number) else number)}


def b(data: bytes) -> Item:
    return {"B": data}


def s(decode_text: str) -> Item:
    return {"S": decode_text}


def decode_text(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass")


def key(record_id: bytes, part: bytes = RECORD) -> Item:
    return {"id": b(record_id), "part": b(part)}


# -------------------------------------------------------------------------------- expressions


class Update:
    """Builds an update expression and its condition, attribute by attribute."""

    def __init__(self) -> None:
        self.sets: dict[str, Item | str] = {}
        self.removes: dict[str, None] = {}
        self._conditions: list[str] = []
        self._values: Item = {}
        self._names: dict[str, str] = {}

    def set(self, **values: Item | str) -> None:
        """Set each attribute to a value, or to an expression built with `name` and `bind`."""
        for attribute, operand in values.items():
            self.removes.pop(attribute, None)
            self.sets[attribute] = operand

    def remove(self, *attributes: str) -> None:
        for attribute in attributes:
            self.sets.pop(attribute, None)
            self.removes[attribute] = None

    def only_if(self, condition: str) -> None:
        self._conditions.append(condition)

    def equal(self, **values: Item) -> None:
        for attribute, operand in values.items():
            self.only_if(f"{self.name(attribute)} = {self.bind(f'is_{attribute}', operand)}")

    def name(self, attribute: str) -> str:
        """Return a variable for the attribute: DynamoDB reserves some 570 words."""
        self._names[f"#{attribute}"] = attribute
        return f"#{attribute}"

    def bind(self, variable: str, operand: Item) -> str:
        self._values[f":{variable}"] = operand
        return f":{variable}"

    def condition(self) -> Item:
        """Return the parameters of a check or a deletion, which have only a condition."""
        return self._with({"ConditionExpression": " AND ".join(self._conditions)})

    def parameters(self) -> Item:
        clauses = []
        if self.sets:
            assignments = [self._assignment(*pair) for pair in self.sets.items()]
            clauses.append(f"SET {', '.join(assignments)}")
        if self.removes:
            clauses.append(f"REMOVE {', '.join(map(self.name, self.removes))}")
        parameters = {"UpdateExpression": " ".join(clauses)}
        if self._conditions:
            parameters["ConditionExpression"] = " AND ".join(self._conditions)
        return self._with(parameters)

    def _assignment(self, attribute: str, operand: Item | str) -> str:
        expression = operand if isinstance(operand, str) else self.bind(f"new_{attribute}", operand)
        return f"{self.name(attribute)} = {expression}"

    def _with(self, parameters: Item) -> Item:
        parameters["ExpressionAttributeNames"] = self._names
        if self._values:
            parameters["ExpressionAttributeValues"] = self._values
        return parameters


def projection(attributes: Iterable[str]) -> Item:
    names = {f"#{attribute}": attribute for attribute in attributes}
    return {"ProjectionExpression": ", ".join(names), "ExpressionAttributeNames": names}
