"""The balance of an account, from the ledger."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from payments.api import objects, schemas
from payments.api.expand import check_paths
from payments.api.openapi import documents_query, documents_response
from payments.api.parameters import Nothing
from payments.api.requests import NoQuery, tenant_of
from payments.api.responses import respond
from payments.money import ledger
from payments.storage.database import Database

router = APIRouter(prefix="/v1/balance", tags=["balance"])


@router.get("", **documents_response(schemas.Balance), **documents_query(Nothing))
def retrieve_balance(request: Request, params: NoQuery) -> Response:
    database: Database = request.app.state.database
    tenant = tenant_of(request)
    check_paths("balance", params.expand)
    with database.read() as connection:
        amounts = ledger.balances(connection, tenant)
    return respond(request, objects.balance(tenant, amounts))
