"""The balance: what the ledger says an account has."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from payments.api import objects, schemas
from payments.api.expand import check
from payments.api.openapi import answers, asks
from payments.api.parameters import Nothing
from payments.api.requests import NoQuery, tenant_of
from payments.api.responses import answer
from payments.money import ledger
from payments.storage.database import Database

router = APIRouter(prefix="/v1/balance", tags=["balance"])


@router.get("", **answers(schemas.Balance), **asks(Nothing))
def retrieve_balance(request: Request, params: NoQuery) -> Response:
    database: Database = request.app.state.database
    tenant = tenant_of(request)
    check("balance", params.expand)
    with database.read() as connection:
        amounts = ledger.balances(connection, tenant)
    return answer(request, objects.balance(tenant, amounts))
