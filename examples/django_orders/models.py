"""What is kept of an order."""

from __future__ import annotations

from django.db import models


class Order(models.Model):  # type: ignore[misc]  # Django has no types
    account = models.CharField(max_length=40)
    item = models.CharField(max_length=100)
    quantity = models.PositiveIntegerField()
    charge = models.CharField(max_length=40)
