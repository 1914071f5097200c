"""The DynamoDB table: how it is created, which tables are refused, and what its errors mean."""

from __future__ import annotations

import pytest

from oncekey._core.op import run
from oncekey._core.verbs import Find
from oncekey.errors import StoreError, StoreUnavailable, StoreUnfit
from oncekey.stores.checks import Risk, refuse_unsafe
from oncekey.stores.dynamodb.checks import definition, findings
from oncekey.stores.dynamodb.statements import ErrorResponse, to_store_error
from oncekey.stores.dynamodb.store import open_url
from oncekey.testing.contract.subject import FACES, Face
from tests.servers.ministack import table_url
from tests.stores.dynamodb import kit

pytestmark = pytest.mark.slow


def test_migrating_says_what_it_made(dynamodb_endpoint: str) -> None:
    with kit.unmigrated(dynamodb_endpoint) as url:
        store = open_url(url)
        assert kit.migrate(store) == [
            f"table {kit.name_of(url)} with the indexes tenants and open",
            "time to live by the attribute ttl",
            "schema 1",
        ]
        assert kit.migrate(store) == []


def test_without_its_table_a_store_says_how_to_make_it(dynamodb_endpoint: str) -> None:
    for make_face in FACES.values():
        store = open_url(table_url(dynamodb_endpoint, "never-made"))
        face: Face = make_face(store)
        with pytest.raises(StoreUnfit, match="run `oncekey migrate dynamodb://never-made"):
            face.ask(Find(b"any"))
        face.close()


def test_a_table_of_a_newer_release_is_not_touched(dynamodb_endpoint: str) -> None:
    with kit.table(dynamodb_endpoint) as url:
        note = {"id": {"B": b"oncekey"}, "part": {"B": b"schema"}}
        newer = {"version": {"N": "9"}, "oldest_reader": {"N": "8"}}
        name = kit.name_of(url)
        kit.client(url).put_item(TableName=name, Item={**note, **newer})
        store = open_url(url)
        connection = store.connect()
        with pytest.raises(StoreUnfit, match="Upgrade oncekey here"):
            run(store.prepare(), connection.ask)
        connection.close()


def test_a_table_of_somebody_elses_is_refused(dynamodb_endpoint: str) -> None:
    with kit.unmigrated(dynamodb_endpoint) as url:
        kit.client(url).create_table(
            TableName=kit.name_of(url),
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            BillingMode="PAY_PER_REQUEST",
        )
        with pytest.raises(StoreUnfit, match="keys or indexes"):
            kit.migrate(open_url(url))


def test_a_global_table_is_refused_unless_it_is_allowed() -> None:
    table = {**definition("t"), "Replicas": [{"RegionName": "eu-west-1"}]}
    with pytest.raises(StoreUnfit, match="eu-west-1"):
        refuse_unsafe(findings(table), "dynamodb://t", ())
    refuse_unsafe(findings(table), "dynamodb://t", (Risk.GLOBAL_TABLE,))


@pytest.mark.parametrize(
    ("denied", "kind", "sent"),
    [
        (ErrorResponse("InternalServerError", "oops"), StoreUnavailable, True),
        (ErrorResponse("ThrottlingException", "slow"), StoreUnavailable, False),
        (
            ErrorResponse(
                "TransactionCanceledException", "no", None, (("TransactionConflict", None),)
            ),
            StoreUnavailable,
            False,
        ),
        (ErrorResponse("ResourceNotFoundException", "no table"), StoreUnfit, None),
        (ErrorResponse("AccessDeniedException", "not allowed"), StoreUnfit, None),
        (ErrorResponse("ExpiredTokenException", "expired"), StoreUnfit, None),
        (ErrorResponse("ValidationException", "too large"), StoreError, None),
    ],
)
def test_what_an_answer_means(
    denied: ErrorResponse, kind: type[StoreError], sent: bool | None
) -> None:
    error = to_store_error(denied, "dynamodb://t")
    assert type(error) is kind
    assert getattr(error, "sent", None) is sent
    assert denied.message in str(error)
