"""Payment methods and tokens: stored cards, known by an id instead of their number."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from sqlalchemy.engine import Connection, Row

from payments import clock
from payments.api import cards, lists, objects, schemas, sources
from payments.api.errors import not_allowed
from payments.api.objects import Object
from payments.api.openapi import documents_body, documents_query, documents_response
from payments.api.parameters import (
    MethodAttach,
    MethodCreate,
    MethodList,
    MethodUpdate,
    Nothing,
    TokenCreate,
)
from payments.api.requests import NoQuery, body_as, query_as, tenant_of
from payments.api.transactions import write_rows
from payments.storage import ids, rows
from payments.storage.database import Database
from payments.storage.tables import payment_methods, tokens

router = APIRouter(prefix="/v1", tags=["payment_methods"])

_METHOD = documents_response(schemas.PaymentMethod, writes=True)


@router.post(
    "/tokens", **documents_response(schemas.Token, writes=True), **documents_body(TokenCreate)
)
def create_token(
    request: Request, params: Annotated[TokenCreate, Depends(body_as(TokenCreate))]
) -> Response:
    card = sources.by_number(params.card)

    def write(connection: Connection, tenant: str) -> Object:
        row = {"tenant": tenant, "id": ids.new("tok"), "created": clock.now_s(), "card": card}
        return objects.token(connection.execute(tokens.insert().returning(tokens), row).one())

    return write_rows(request, params, write)


@router.get("/tokens/{id}", **documents_response(schemas.Token), **documents_query(Nothing))
def retrieve_token(request: Request, id: str, params: NoQuery) -> Response:
    return lists.retrieve(request, params, tokens, id, objects.token)


@router.post("/payment_methods", **_METHOD, **documents_body(MethodCreate))
def create_payment_method(
    request: Request, params: Annotated[MethodCreate, Depends(body_as(MethodCreate))]
) -> Response:
    billing = params.billing_details.model_dump() if params.billing_details else None

    def write(connection: Connection, tenant: str) -> Object:
        card = sources.card_of(connection, tenant, params.card)
        created = sources.add_method(connection, tenant, card, billing, params.metadata)
        return objects.payment_method(created)

    return write_rows(request, params, write)


@router.get(
    "/payment_methods",
    **documents_response(schemas.PaymentMethod, many=True),
    **documents_query(MethodList),
)
def list_payment_methods(
    request: Request, params: Annotated[MethodList, Depends(query_as(MethodList))]
) -> Response:
    return lists.list_objects(request, params, payment_methods, objects.payment_method, "customer")


@router.get(
    "/customers/{id}/payment_methods",
    **documents_response(schemas.PaymentMethod, many=True),
    **documents_query(MethodList),
)
def list_customer_payment_methods(
    request: Request, id: str, params: Annotated[MethodList, Depends(query_as(MethodList))]
) -> Response:
    database: Database = request.app.state.database
    with database.read() as connection:
        sources.existing_customer(connection, tenant_of(request), id, "id")
    return lists.list_objects(
        request,
        params,
        payment_methods,
        objects.payment_method,
        where=[payment_methods.c.customer == id],
        url=f"/v1/customers/{id}/payment_methods",
    )


@router.get(
    "/payment_methods/{id}", **documents_response(schemas.PaymentMethod), **documents_query(Nothing)
)
def retrieve_payment_method(request: Request, id: str, params: NoQuery) -> Response:
    return lists.retrieve(request, params, payment_methods, id, objects.payment_method)


@router.post("/payment_methods/{id}", **_METHOD, **documents_body(MethodUpdate))
def update_payment_method(
    request: Request, id: str, params: Annotated[MethodUpdate, Depends(body_as(MethodUpdate))]
) -> Response:
    def write(connection: Connection, tenant: str) -> Object:
        method = rows.get(connection, payment_methods, tenant, id, lock=True)
        values = params.explicit_values()
        if params.billing_details is not None:
            changes = params.billing_details.model_dump(exclude_unset=True)
            values["billing_details"] = _merge(method.billing_details, changes)
        return objects.payment_method(rows.update(connection, payment_methods, method, values))

    return write_rows(request, params, write, "payment_method.updated")


@router.post("/payment_methods/{id}/attach", **_METHOD, **documents_body(MethodAttach))
def attach_payment_method(
    request: Request, id: str, params: Annotated[MethodAttach, Depends(body_as(MethodAttach))]
) -> Response:
    def write(connection: Connection, tenant: str) -> Object:
        sources.existing_customer(connection, tenant, params.customer)
        method = _get_or_copy(connection, tenant, id)
        attached = sources.attach(connection, tenant, method.id, params.customer)
        return objects.payment_method(attached)

    return write_rows(request, params, write, "payment_method.attached")


@router.post("/payment_methods/{id}/detach", **_METHOD, **documents_body(Nothing))
def detach_payment_method(
    request: Request, id: str, params: Annotated[Nothing, Depends(body_as(Nothing))]
) -> Response:
    def write(connection: Connection, tenant: str) -> Object:
        method = rows.get(connection, payment_methods, tenant, id, lock=True)
        if method.customer is None:
            raise not_allowed("The payment method you provided is not attached to a customer.")
        changed = rows.update(connection, payment_methods, method, {"customer": None})
        return objects.payment_method(changed)

    return write_rows(request, params, write, "payment_method.detached")


def _merge(old: Object | None, changes: Object) -> Object:
    """Merge new values into old ones, recursively."""
    both = {**(old or {}), **changes}
    for name, part in changes.items():
        if isinstance(part, dict):
            both[name] = _merge((old or {}).get(name), part)
    return both


def _get_or_copy(connection: Connection, tenant: str, id_: str) -> Row[Any]:
    """Return a payment method; a documented test method is first copied to the account."""
    test_card = cards.find_test_card(id_) if id_.startswith("pm_") else None
    if test_card is not None:
        return sources.add_method(connection, tenant, test_card)
    return rows.get(connection, payment_methods, tenant, id_, lock=True)
