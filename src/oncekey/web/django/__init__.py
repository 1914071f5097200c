"""Django: views that run once per key, after whatever checks the request.

    INSTALLED_APPS = [..., "oncekey.web.django"]
    MIDDLEWARE = [..., "oncekey.web.django.IdempotencyMiddleware"]   # the last one
    ONCEKEY = {"store": "sqlite:///keys.db", "tenant": "shop.accounts.account_of"}

All views that change something are guarded when they are about to be called: after all middleware,
CSRF and login included. Decorators of a view run inside it; where one of them checks who may call
it, mark the view below it:

    @login_required
    @idempotent
    def order(request): ...
"""

from oncekey.web.django._decorators import idempotent, not_idempotent
from oncekey.web.django.middleware import IdempotencyMiddleware

__all__ = ["IdempotencyMiddleware", "idempotent", "not_idempotent"]
