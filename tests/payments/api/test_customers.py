import pytest

from payments.api import schemas
from tests.payments.api_client import Api


def test_a_customer_is_made_changed_and_deleted(api: Api) -> None:
    made = api.create("customers", {"email": "ada@example.com", "name": "Ada", "metadata[a]": "1"})
    schemas.Customer.model_validate(made)
    changed = api.create(f"customers/{made['id']}", {"name": "", "metadata[b]": "2"})
    assert (changed["name"], changed["email"]) == (None, "ada@example.com")
    assert changed["metadata"] == {"a": "1", "b": "2"}
    assert api.client.delete(f"/v1/customers/{made['id']}?surprise=1").status_code == 400
    gone = api.client.delete(f"/v1/customers/{made['id']}").json()
    assert gone == {"id": made["id"], "object": "customer", "deleted": True}
    assert api.get(f"customers/{made['id']}").json() == gone
    assert api.client.delete(f"/v1/customers/{made['id']}").status_code == 404
    assert api.post_refused(f"customers/{made['id']}", {"name": "x"}, 404)
    kinds = ("customer.created", "customer.updated", "customer.deleted")
    assert all(api.events(kind)[0]["data"]["object"]["id"] == made["id"] for kind in kinds)


def test_a_customer_pays_with_the_card_that_is_attached(api: Api) -> None:
    customer = api.create("customers", {"source": "tok_amex"})
    charge = api.create("charges", {"amount": 500, "currency": "usd", "customer": customer["id"]})
    assert charge["payment_method_details"]["card"]["brand"] == "amex"
    bare = api.create("customers")
    error = api.post_refused("charges", {"amount": 500, "currency": "usd", "customer": bare["id"]})
    assert error["param"] == "customer"
    assert api.get("charges", customer=customer["id"]).json()["data"] == [charge]


@pytest.mark.slow
def test_a_method_of_one_customer_is_not_taken_by_making_another(fresh: Api) -> None:
    """The refusal is kept, the rows that were written before it are not."""
    first = fresh.create("customers", {"payment_method": "pm_card_visa"})["id"]
    [method] = fresh.get("payment_methods", customer=first).json()["data"]
    refused, again = (
        fresh.post("customers", {"payment_method": method["id"]}, "steal") for _ in range(2)
    )
    assert (refused.status_code, again.content) == (400, refused.content)
    assert again.headers["idempotent-replayed"] == "true"
    assert fresh.get("payment_methods", customer=first).json()["data"] == [method]
    assert fresh.count("customers") == 1


def test_customers_are_listed_by_email(api: Api) -> None:
    made = api.create("customers", {"email": "only@example.com"})
    assert api.get("customers", email="only@example.com").json()["data"] == [made]


def test_a_retry_makes_one_customer(api: Api) -> None:
    """Rows only: claim, rows and answer are one transaction."""
    first, again = (api.post("customers", {"name": "Grace"}, "customer-1") for _ in range(2))
    assert again.content == first.content
    assert again.headers["idempotent-replayed"] == "true"
    assert len(api.events("customer.created")) == len(
        {event["data"]["object"]["id"] for event in api.events("customer.created")}
    )
