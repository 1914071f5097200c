"""Customers: who pays. Only rows, so each change commits in one transaction with its response."""

from __future__ import annotations

from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from sqlalchemy.engine import Connection

from payments import clock
from payments.api import lists, objects, schemas, sources
from payments.api.errors import not_found
from payments.api.expand import check_paths
from payments.api.objects import Object
from payments.api.openapi import documents_body, documents_query, documents_response
from payments.api.parameters import CustomerChange, CustomerCreate, CustomerList, Nothing
from payments.api.requests import NoQuery, body_as, query_as, tenant_of
from payments.api.responses import request_id, respond
from payments.api.transactions import write_rows
from payments.storage import ids, rows
from payments.storage.database import Database
from payments.storage.tables import customers, payment_methods
from payments.webhooks import events

router = APIRouter(prefix="/v1/customers", tags=["customers"])


@router.post(
    "", **documents_response(schemas.Customer, writes=True), **documents_body(CustomerCreate)
)
def create_customer(
    request: Request, params: Annotated[CustomerCreate, Depends(body_as(CustomerCreate))]
) -> Response:
    def write(connection: Connection, tenant: str) -> Object:
        row = {
            "tenant": tenant,
            "id": ids.new("cus"),
            "created": clock.now_s(),
            "metadata": rows.merge_metadata(None, params.metadata),
        }
        row |= {name: getattr(params, name) for name in ("name", "email", "phone", "description")}
        cards = [
            sources.by_id(connection, tenant, id_, param)
            for param, id_ in (
                ("source", params.source),
                ("payment_method", params.payment_method),
            )
            if id_ is not None
        ]
        customer = connection.execute(customers.insert().returning(customers), row).one()
        for source in cards:
            if source.payment_method is None:
                sources.add_method(connection, tenant, source.card, customer=customer.id)
            else:
                sources.attach(connection, tenant, source.payment_method, customer.id)
        return objects.customer(customer)

    return write_rows(request, params, write, "customer.created")


@router.get("", **documents_response(schemas.Customer, many=True), **documents_query(CustomerList))
def list_customers(
    request: Request, params: Annotated[CustomerList, Depends(query_as(CustomerList))]
) -> Response:
    not_deleted = [customers.c.deleted.is_(False)]
    return lists.list_objects(
        request, params, customers, objects.customer, "email", where=not_deleted
    )


@router.get(
    "/{id}", **documents_response(schemas.Customer, or_deleted=True), **documents_query(Nothing)
)
def retrieve_customer(request: Request, id: str, params: NoQuery) -> Response:
    return lists.retrieve(request, params, customers, id, objects.customer)


@router.post(
    "/{id}", **documents_response(schemas.Customer, writes=True), **documents_body(CustomerChange)
)
def update_customer(
    request: Request, id: str, params: Annotated[CustomerChange, Depends(body_as(CustomerChange))]
) -> Response:
    def write(connection: Connection, tenant: str) -> Object:
        customer = rows.get(connection, customers, tenant, id, lock=True)
        if customer.deleted:
            raise not_found("customer", id)
        return objects.customer(
            rows.update(connection, customers, customer, params.explicit_values())
        )

    return write_rows(request, params, write, "customer.updated")


@router.delete(
    "/{id}", **documents_response(schemas.Deleted, writes=True), **documents_query(Nothing)
)
def delete_customer(request: Request, id: str, params: NoQuery) -> Response:
    """Delete personal data; the id stays, for charges that refer to it."""
    check_paths("customer", params.expand)
    database: Database = request.app.state.database
    tenant = tenant_of(request)
    with database.rows() as connection:
        customer = rows.get(connection, customers, tenant, id, lock=True)
        if customer.deleted:
            raise not_found("customer", id)
        blank = dict.fromkeys(("name", "email", "phone", "description", "metadata"))
        gone = rows.change(connection, customers, tenant, id, deleted=True, **blank)
        connection.execute(
            sa.update(payment_methods)
            .where(payment_methods.c.tenant == tenant, payment_methods.c.customer == id)
            .values(customer=None)
        )
        before = objects.customer(customer)
        events.record(connection, tenant, "customer.deleted", before, request_id(request))
    return respond(request, objects.customer(gone or customer))
