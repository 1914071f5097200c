"""Fixtures for DynamoDB tests: a store, and direct access to its table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from oncekey.testing.contract import Case, Subject
from oncekey.testing.contract.subject import FACES, Face
from tests.stores.dynamodb import kit

Look = Callable[[bytes], list[dict[str, Any]]]


@pytest.fixture(params=list(FACES))
def case(request: pytest.FixtureRequest, dynamodb: Subject) -> Iterator[Case]:
    face: Face = FACES[request.param](dynamodb.store)
    yield Case(dynamodb, face)
    face.close()


@pytest.fixture
def items(dynamodb_url: str) -> Look:
    """Read all items of a record directly from the table."""

    def look(record_id: bytes) -> list[dict[str, Any]]:
        pages = (
            kit.client(dynamodb_url)
            .get_paginator("query")
            .paginate(
                TableName=kit.name_of(dynamodb_url),
                KeyConditionExpression="id = :id",
                ExpressionAttributeValues={":id": {"B": record_id}},
            )
        )
        return [item for page in pages for item in page["Items"]]

    return look


def record_of(found: list[dict[str, Any]]) -> dict[str, Any]:
    [item] = [item for item in found if item["part"]["B"] == b"r"]
    return item
