"""The table in DynamoDB: how it is made, which one is refused, and what its answers mean."""

from __future__ import annotations

import pytest

from oncekey.core.op import run
from oncekey.core.verbs import Find
from oncekey.errors import StoreError, StoreUnavailable, StoreUnfit
from oncekey.stores.dynamodb import open_url
from oncekey.stores.dynamodb_calls import Denied
from oncekey.stores.dynamodb_fitness import definition, findings
from oncekey.stores.dynamodb_table import judged
from oncekey.stores.finding import Risk, insist
from oncekey.testing.contract.subject import FACES, Face
from tests.servers.ministack import table_url
from tests.stores import dynamodb_kit

pytestmark = pytest.mark.slow


def test_migrating_says_what_it_made(dynamodb_endpoint: str) -> None:
    with dynamodb_kit.unmigrated(dynamodb_endpoint) as url:
        store = open_url(url)
        assert dynamodb_kit.migrate(store) == [
            f"table {dynamodb_kit.name_of(url)} with the indexes tenants and open",
            "time to live by the attribute ttl",
            "schema 1",
        ]
        assert dynamodb_kit.migrate(store) == []


def test_without_its_table_a_store_says_how_to_make_it(dynamodb_endpoint: str) -> None:
    for make_face in FACES.values():
        store = open_url(table_url(dynamodb_endpoint, "never-made"))
        face: Face = make_face(store)
        with pytest.raises(StoreUnfit, match="run `oncekey migrate dynamodb://never-made"):
            face.ask(Find(b"any"))
        face.close()


def test_a_table_of_a_newer_release_is_not_touched(dynamodb_endpoint: str) -> None:
    with dynamodb_kit.table(dynamodb_endpoint) as url:
        note = {"id": {"B": b"oncekey"}, "part": {"B": b"schema"}}
        newer = {"version": {"N": "9"}, "oldest_reader": {"N": "8"}}
        name = dynamodb_kit.name_of(url)
        dynamodb_kit.client(url).put_item(TableName=name, Item={**note, **newer})
        store = open_url(url)
        connection = store.connect()
        with pytest.raises(StoreUnfit, match="Upgrade oncekey here"):
            run(store.prepare(), connection.ask)
        connection.close()


def test_a_table_of_somebody_elses_is_refused(dynamodb_endpoint: str) -> None:
    with dynamodb_kit.unmigrated(dynamodb_endpoint) as url:
        dynamodb_kit.client(url).create_table(
            TableName=dynamodb_kit.name_of(url),
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            BillingMode="PAY_PER_REQUEST",
        )
        with pytest.raises(StoreUnfit, match="keys or indexes"):
            dynamodb_kit.migrate(open_url(url))


def test_a_global_table_is_refused_unless_it_is_allowed() -> None:
    table = {**definition("t"), "Replicas": [{"RegionName": "eu-west-1"}]}
    with pytest.raises(StoreUnfit, match="eu-west-1"):
        insist(findings(table), "dynamodb://t", ())
    insist(findings(table), "dynamodb://t", (Risk.GLOBAL_TABLE,))


@pytest.mark.parametrize(
    ("denied", "kind", "sent"),
    [
        (Denied("InternalServerError", "oops"), StoreUnavailable, True),
        (Denied("ThrottlingException", "slow"), StoreUnavailable, False),
        (
            Denied("TransactionCanceledException", "no", None, (("TransactionConflict", None),)),
            StoreUnavailable,
            False,
        ),
        (Denied("ResourceNotFoundException", "no table"), StoreUnfit, None),
        (Denied("AccessDeniedException", "not allowed"), StoreUnfit, None),
        (Denied("ExpiredTokenException", "expired"), StoreUnfit, None),
        (Denied("ValidationException", "too large"), StoreError, None),
    ],
)
def test_what_an_answer_means(denied: Denied, kind: type[StoreError], sent: bool | None) -> None:
    error = judged(denied, "dynamodb://t")
    assert type(error) is kind
    assert getattr(error, "sent", None) is sent
    assert denied.message in str(error)
