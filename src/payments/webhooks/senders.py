"""Senders: how webhooks are sent, and where they may go.

Plain http is allowed in test mode only. Private addresses are refused unless the settings name
their networks.
"""

from __future__ import annotations

import threading

from oncekey.webhooks import Destinations, Sender
from payments.api.errors import StripeError
from payments.settings import Settings

LOOKUPS_MAX = 4
"""DNS lookups at once, of all accounts together: one may take many seconds and holds a thread that
payments need.
"""


class Senders:
    """One sender per mode."""

    def __init__(self, settings: Settings) -> None:
        self._lookups = threading.BoundedSemaphore(LOOKUPS_MAX)
        allowed = settings.webhook_networks
        self._live = Sender(Destinations(allowed=allowed))
        self._test = Sender(Destinations(https_required=False, allowed=allowed))

    def of(self, tenant: str) -> Sender:
        """Return the sender for a tenant, such as `acct_…/test`."""
        return self._test if tenant.endswith("/test") else self._live

    def objection(self, tenant: str, url: str) -> str | None:
        """Return why nothing can be sent to this URL, or None."""
        if not self._lookups.acquire(blocking=False):
            message = "Too many names are being looked up. Retry with the same Idempotency-Key."
            raise StripeError(503, "api_error", message, no_effect=True)
        try:
            return self.of(tenant).objection(url)
        finally:
            self._lookups.release()
