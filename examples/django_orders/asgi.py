"""For servers that speak ASGI: `uvicorn examples.django_orders.asgi:application`."""

from __future__ import annotations

import os

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "examples.django_orders.settings")
application = get_asgi_application()
