"""The balance: what the ledger says an account has."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import Response

from payments import ledger, objects, shapes
from payments.answers import answer
from payments.database import Database
from payments.expanding import check
from payments.openapi import answers, asks
from payments.parameters import Nothing
from payments.reading import Looking, tenant

router = APIRouter(prefix="/v1/balance", tags=["balance"])


@router.get("", **answers(shapes.Balance), **asks(Nothing))
def retrieve_balance(request: Request, asked: Looking) -> Response:
    database: Database = request.app.state.database
    whose = tenant(request)
    check("balance", asked.expand)
    with database.read() as connection:
        amounts = ledger.balances(connection, whose)
    return answer(request, objects.balance(whose, amounts))
