from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from tests.payments.api_client import Api, start_api


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """One of its own: every charge in it is known."""
    with start_api(tmp_path_factory.mktemp("lists")) as api:
        yield api


@pytest.fixture(scope="module")
def charges(api: Api) -> list[str]:
    """Newest first."""
    return [api.charge(100 + number)["id"] for number in range(7)][::-1]


def ids(found: dict[str, Any]) -> list[str]:
    return [each["id"] for each in found["data"]]


def test_a_list_is_walked_forwards_and_backwards(api: Api, charges: list[str]) -> None:
    first = api.get("charges", limit=3).json()
    assert (first["object"], first["url"], first["has_more"]) == ("list", "/v1/charges", True)
    assert ids(first) == charges[:3]
    second = api.get("charges", limit=3, starting_after=charges[2]).json()
    assert (ids(second), second["has_more"]) == (charges[3:6], True)
    last = api.get("charges", limit=3, starting_after=charges[5]).json()
    assert (ids(last), last["has_more"]) == (charges[6:], False)
    back = api.get("charges", limit=3, ending_before=charges[6]).json()
    assert (ids(back), back["has_more"]) == (charges[3:6], True)
    top = api.get("charges", limit=5, ending_before=charges[2]).json()
    assert (ids(top), top["has_more"]) == (charges[:2], False)


def test_a_list_is_limited_by_time(api: Api, charges: list[str]) -> None:
    created = api.get(f"charges/{charges[0]}").json()["created"]
    assert ids(api.get("charges", **{"created[gte]": created + 60}).json()) == []
    assert charges[0] in ids(api.get("charges", **{"created[lte]": created}).json())
    assert charges[0] in ids(api.get("charges", created=created).json())


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"limit": 0}, "limit"),
        ({"limit": 101}, "limit"),
        ({"limit": "many"}, "limit"),
        ({"starting_after": "ch_nobody"}, "starting_after"),
        ({"ending_before": "ch_nobody"}, "ending_before"),
        ({"created[ge]": 1}, "created[ge]"),
        ({"created[gte]": "soon"}, "created[gte]"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_what_is_wrong_is_named(api: Api, query: dict[str, Any], param: str) -> None:
    response = api.get("charges", **query)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_one_way_at_a_time(api: Api, charges: list[str]) -> None:
    both = {"starting_after": charges[0], "ending_before": charges[1]}
    assert api.get("charges", **both).status_code == 400


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("charges", "customer"),
        ("charges", "payment_intent"),
        ("customers", "email"),
        ("payment_intents", "customer"),
        ("payment_methods", "customer"),
        ("refunds", "charge"),
        ("refunds", "payment_intent"),
    ],
)
def test_p11_what_is_asked_for_is_found_without_reading_all(api: Api, kind: str, name: str) -> None:
    ran: list[str] = []

    def run(_: Any, __: Any, statement: str, *rest: Any) -> None:
        ran.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", run)
    try:
        assert api.get(kind, **{name: "x"}).json()["data"] == []
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", run)
    [listing] = [statement for statement in ran if f"{kind}.{name} = ?" in statement]
    with api.database.read() as connection:
        plan = connection.exec_driver_sql(
            f"EXPLAIN QUERY PLAN {listing}", ("x",) * listing.count("?")
        ).all()
    assert f"tenant=? AND {name}=?" in str(plan)
    assert "TEMP B-TREE" not in str(plan)
