"""The settings. Orders and keys are in one database, so that they can commit together."""

from __future__ import annotations

import os
from pathlib import Path

from oncekey import Policy

DATA = Path(os.environ.get("ORDERS_DATA", "."))
SECRET_KEY = os.environ.get("ORDERS_SECRET", "for this example alone")
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "examples.django_orders.urls"
WSGI_APPLICATION = "examples.django_orders.wsgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": DATA / "orders.db",
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "timeout": 10},
    }
}
INSTALLED_APPS = ["examples.django_orders", "oncekey.web.django"]
MIDDLEWARE = [
    "django.middleware.common.CommonMiddleware",
    "examples.django_orders.accounts.SignInMiddleware",
    "oncekey.web.django.IdempotencyMiddleware",  # the last one: all others check before it claims
]
ONCEKEY = {
    "store": f"sqlite:///{DATA / 'orders.db'}",
    "tenant": "examples.django_orders.accounts.account_of",
    "policy": Policy(required=True, recovery="resume"),
}
