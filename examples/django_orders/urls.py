"""The routes."""

from __future__ import annotations

from django.urls import path

from examples.django_orders.views import Orders

urlpatterns = [path("orders", Orders.as_view())]
