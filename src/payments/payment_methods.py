"""Payment methods and tokens: cards that were seen, by an id instead of their number."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from sqlalchemy.engine import Connection, Row

from payments import cards, clock, events, ids, lists, objects, rows, shapes, sources
from payments.answers import answer, request_id
from payments.database import Database
from payments.errors import refused
from payments.expanding import expanded
from payments.openapi import answers, asks, takes
from payments.parameters import (
    MethodAttach,
    MethodCreate,
    MethodList,
    MethodUpdate,
    Nothing,
    TokenCreate,
)
from payments.reading import Looking, body_as, query_as, tenant
from payments.tables import payment_methods, tokens

router = APIRouter(prefix="/v1", tags=["payment_methods"])

_METHOD = answers(shapes.PaymentMethod, writes=True)


@router.post("/tokens", **answers(shapes.Token, writes=True), **takes(TokenCreate))
def create_token(
    request: Request, asked: Annotated[TokenCreate, Depends(body_as(TokenCreate))]
) -> Response:
    database: Database = request.app.state.database
    whose = tenant(request)
    row = {
        "tenant": whose,
        "id": ids.new("tok"),
        "created": clock.now_s(),
        "card": sources.by_number(asked.card),
    }
    with database.rows() as connection:
        made = connection.execute(tokens.insert().returning(tokens), row).one()
        shown = expanded(connection, whose, objects.token(made), asked.expand)
    return answer(request, shown)


@router.get("/tokens/{id}", **answers(shapes.Token), **asks(Nothing))
def retrieve_token(request: Request, id: str, asked: Looking) -> Response:
    return lists.one(request, asked, tokens, id, objects.token)


@router.post("/payment_methods", **_METHOD, **takes(MethodCreate))
def create_payment_method(
    request: Request, asked: Annotated[MethodCreate, Depends(body_as(MethodCreate))]
) -> Response:
    database: Database = request.app.state.database
    whose = tenant(request)
    billing = asked.billing_details.model_dump() if asked.billing_details else None
    with database.rows() as connection:
        card = sources.card_of(connection, whose, asked.card)
        made = sources.add_method(connection, whose, card, billing, asked.metadata)
        shown = expanded(connection, whose, objects.payment_method(made), asked.expand)
    return answer(request, shown)


@router.get("/payment_methods", **answers(shapes.PaymentMethod, many=True), **asks(MethodList))
def list_payment_methods(
    request: Request, asked: Annotated[MethodList, Depends(query_as(MethodList))]
) -> Response:
    return lists.many(request, asked, payment_methods, objects.payment_method, "customer")


@router.get(
    "/customers/{id}/payment_methods",
    **answers(shapes.PaymentMethod, many=True),
    **asks(MethodList),
)
def list_customer_payment_methods(
    request: Request, id: str, asked: Annotated[MethodList, Depends(query_as(MethodList))]
) -> Response:
    database: Database = request.app.state.database
    with database.read() as connection:
        sources.existing_customer(connection, tenant(request), id, "id")
    return lists.many(
        request,
        asked,
        payment_methods,
        objects.payment_method,
        where=[payment_methods.c.customer == id],
        url=f"/v1/customers/{id}/payment_methods",
    )


@router.get("/payment_methods/{id}", **answers(shapes.PaymentMethod), **asks(Nothing))
def retrieve_payment_method(request: Request, id: str, asked: Looking) -> Response:
    return lists.one(request, asked, payment_methods, id, objects.payment_method)


@router.post("/payment_methods/{id}", **_METHOD, **takes(MethodUpdate))
def update_payment_method(
    request: Request, id: str, asked: Annotated[MethodUpdate, Depends(body_as(MethodUpdate))]
) -> Response:
    database: Database = request.app.state.database
    whose = tenant(request)
    with database.rows() as connection:
        method = rows.get(connection, payment_methods, whose, id, lock=True)
        given = asked.given()
        if asked.billing_details is not None:
            said = asked.billing_details.model_dump(exclude_unset=True)
            given["billing_details"] = _with(method.billing_details, said)
        changed = rows.update(connection, payment_methods, method, given)
        shown = _told(connection, whose, changed, "payment_method.updated", request)
        expanded(connection, whose, shown, asked.expand)
    return answer(request, shown)


@router.post("/payment_methods/{id}/attach", **_METHOD, **takes(MethodAttach))
def attach_payment_method(
    request: Request, id: str, asked: Annotated[MethodAttach, Depends(body_as(MethodAttach))]
) -> Response:
    database: Database = request.app.state.database
    whose = tenant(request)
    with database.rows() as connection:
        sources.existing_customer(connection, whose, asked.customer)
        method = _own(connection, whose, id)
        attached = sources.attach(connection, whose, method.id, asked.customer)
        shown = _told(connection, whose, attached, "payment_method.attached", request)
        expanded(connection, whose, shown, asked.expand)
    return answer(request, shown)


@router.post("/payment_methods/{id}/detach", **_METHOD, **takes(Nothing))
def detach_payment_method(
    request: Request, id: str, asked: Annotated[Nothing, Depends(body_as(Nothing))]
) -> Response:
    database: Database = request.app.state.database
    whose = tenant(request)
    with database.rows() as connection:
        method = rows.get(connection, payment_methods, whose, id, lock=True)
        if method.customer is None:
            raise refused("The payment method you provided is not attached to a customer.")
        changed = rows.update(connection, payment_methods, method, {"customer": None})
        shown = _told(connection, whose, changed, "payment_method.detached", request)
        expanded(connection, whose, shown, asked.expand)
    return answer(request, shown)


def _with(old: objects.Object | None, said: objects.Object) -> objects.Object:
    """What is said replaces what was said before, part by part."""
    both = {**(old or {}), **said}
    for name, part in said.items():
        if isinstance(part, dict):
            both[name] = _with((old or {}).get(name), part)
    return both


def _own(connection: Connection, whose: str, id_: str) -> Row[Any]:
    """A payment method; one of the documented test methods becomes one of the account's own."""
    named = cards.named(id_) if id_.startswith("pm_") else None
    if named is not None:
        return sources.add_method(connection, whose, named)
    return rows.get(connection, payment_methods, whose, id_, lock=True)


def _told(
    connection: Connection, whose: str, method: Row[Any], kind: str, request: Request
) -> objects.Object:
    shown = objects.payment_method(method)
    events.record(connection, whose, kind, shown, request_id(request))
    return shown
