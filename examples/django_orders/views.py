"""The views. An order is charged once, and committed together with its answer."""

from __future__ import annotations

import functools
import json
import uuid
from collections.abc import Callable
from typing import Any

from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils.decorators import method_decorator
from django.views import View

import oncekey
from examples.django_orders.accounts import may_order
from examples.django_orders.models import Order
from oncekey.web.django import idempotent


def charge_card(account: str, amount: int, key: str) -> str:
    """Stands for a payment provider that takes an idempotency key itself."""
    return f"ch_{uuid.uuid5(uuid.NAMESPACE_URL, key).hex[:12]}"


def valid_order(view: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(view)
    def wrapper(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        order = json.loads(request.body)
        quantity = order.get("quantity", 1)
        if not isinstance(order.get("item"), str) or not isinstance(quantity, int) or quantity < 1:
            return JsonResponse({"error": "an order has an item and a quantity"}, status=422)
        return view(request, order["item"], quantity, *args, **kwargs)

    return wrapper


class Orders(View):  # type: ignore[misc]  # Django has no types
    @method_decorator([may_order, valid_order, idempotent])  # type: ignore[untyped-decorator]
    def post(self, request: HttpRequest, item: str, quantity: int) -> HttpResponse:
        attempt, account = oncekey.current(), request.account
        # The result is stored: a retry after a crash does not charge again. If it crashed earlier,
        # the provider sees the same key again.
        charged = attempt.step_sync(
            "charge", charge_card, account, quantity * 100, attempt.child_key("charge")
        )
        with transaction.atomic():
            order = Order.objects.create(
                account=account, item=item, quantity=quantity, charge=charged
            )
            attempt.resource_id = str(order.pk)
            answer = {"id": order.pk, "item": item, "charge": charged}
            attempt.complete_in_sync(connection, 201, answer)
        return JsonResponse(answer, status=201)

    def get(self, request: HttpRequest) -> HttpResponse:
        orders = Order.objects.filter(account=request.account)
        return JsonResponse([{"id": o.pk, "item": o.item} for o in orders], safe=False)
