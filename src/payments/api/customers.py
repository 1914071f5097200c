"""Customers: who pays. Only rows, so each change is one transaction with its answer."""

from __future__ import annotations

from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from sqlalchemy.engine import Connection

from payments import clock
from payments.api import lists, objects, schemas, sources
from payments.api.errors import missing
from payments.api.expand import check
from payments.api.objects import Object
from payments.api.openapi import answers, asks, takes
from payments.api.parameters import CustomerChange, CustomerCreate, CustomerList, Nothing
from payments.api.reading import Looking, body_as, query_as, tenant
from payments.api.responses import answer, request_id
from payments.storage import ids, rows
from payments.storage.database import Database
from payments.storage.tables import customers, payment_methods
from payments.storage.transactions import written
from payments.webhooks import events

router = APIRouter(prefix="/v1/customers", tags=["customers"])


@router.post("", **answers(schemas.Customer, writes=True), **takes(CustomerCreate))
def create_customer(
    request: Request, asked: Annotated[CustomerCreate, Depends(body_as(CustomerCreate))]
) -> Response:
    def write(connection: Connection, whose: str) -> Object:
        row = {
            "tenant": whose,
            "id": ids.new("cus"),
            "created": clock.now_s(),
            "metadata": rows.merged(None, asked.metadata),
        }
        row |= {name: getattr(asked, name) for name in ("name", "email", "phone", "description")}
        cards = [
            sources.by_id(connection, whose, given, param)
            for param, given in (("source", asked.source), ("payment_method", asked.payment_method))
            if given is not None
        ]
        made = connection.execute(customers.insert().returning(customers), row).one()
        for source in cards:
            if source.payment_method is None:
                sources.add_method(connection, whose, source.card, customer=made.id)
            else:
                sources.attach(connection, whose, source.payment_method, made.id)
        return objects.customer(made)

    return written(request, asked, write, "customer.created")


@router.get("", **answers(schemas.Customer, many=True), **asks(CustomerList))
def list_customers(
    request: Request, asked: Annotated[CustomerList, Depends(query_as(CustomerList))]
) -> Response:
    there = [customers.c.deleted.is_(False)]
    return lists.many(request, asked, customers, objects.customer, "email", where=there)


@router.get("/{id}", **answers(schemas.Customer, or_deleted=True), **asks(Nothing))
def retrieve_customer(request: Request, id: str, asked: Looking) -> Response:
    return lists.one(request, asked, customers, id, objects.customer)


@router.post("/{id}", **answers(schemas.Customer, writes=True), **takes(CustomerChange))
def update_customer(
    request: Request, id: str, asked: Annotated[CustomerChange, Depends(body_as(CustomerChange))]
) -> Response:
    def write(connection: Connection, whose: str) -> Object:
        customer = rows.get(connection, customers, whose, id, lock=True)
        if customer.deleted:
            raise missing("customer", id)
        return objects.customer(rows.update(connection, customers, customer, asked.given()))

    return written(request, asked, write, "customer.updated")


@router.delete("/{id}", **answers(schemas.Deleted, writes=True), **asks(Nothing))
def delete_customer(request: Request, id: str, asked: Looking) -> Response:
    """The id stays known, for the charges that name it; what is personal goes."""
    check("customer", asked.expand)
    database: Database = request.app.state.database
    whose = tenant(request)
    with database.rows() as connection:
        customer = rows.get(connection, customers, whose, id, lock=True)
        if customer.deleted:
            raise missing("customer", id)
        blank = dict.fromkeys(("name", "email", "phone", "description", "metadata"))
        gone = rows.change(connection, customers, whose, id, deleted=True, **blank)
        connection.execute(
            sa.update(payment_methods)
            .where(payment_methods.c.tenant == whose, payment_methods.c.customer == id)
            .values(customer=None)
        )
        before = objects.customer(customer)
        events.record(connection, whose, "customer.deleted", before, request_id(request))
    return answer(request, objects.customer(gone or customer))
