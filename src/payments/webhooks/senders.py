"""Senders: who delivers webhooks, and where they may go.

Plain http is for test mode alone. Addresses that are not public are for nobody, unless the settings
name their networks.
"""

from __future__ import annotations

import threading

from oncekey.webhooks import Destinations, Sender
from payments.api.errors import StripeError
from payments.settings import Settings

LOOKUPS_MAX = 4
"""At once, of all accounts together: a name may take many seconds, and whoever asks for it holds a
thread that others need to pay.
"""


class Senders:
    """One for each mode."""

    def __init__(self, settings: Settings) -> None:
        self._lookups = threading.BoundedSemaphore(LOOKUPS_MAX)
        allowed = settings.webhook_networks
        self._live = Sender(Destinations(allowed=allowed))
        self._test = Sender(Destinations(https_required=False, allowed=allowed))

    def of(self, tenant: str) -> Sender:
        """The sender for an account in its mode: `acct_…/test`."""
        return self._test if tenant.endswith("/test") else self._live

    def objection(self, tenant: str, url: str) -> str | None:
        """Why nothing can be sent to this URL; None if something can."""
        if not self._lookups.acquire(blocking=False):
            message = "Too many names are being looked up. Retry with the same Idempotency-Key."
            raise StripeError(503, "api_error", message, no_effect=True)
        try:
            return self.of(tenant).objection(url)
        finally:
            self._lookups.release()
