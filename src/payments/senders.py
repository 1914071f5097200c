"""Senders: who delivers webhooks, and where they may go.

Plain http is for test mode alone. Addresses that are not public are for nobody, unless the settings
name their networks.
"""

from __future__ import annotations

from oncekey.webhooks import Destinations, Sender
from payments.settings import Settings


class Senders:
    """One for each mode."""

    def __init__(self, settings: Settings) -> None:
        allowed = settings.webhook_networks
        self._live = Sender(Destinations(allowed=allowed))
        self._test = Sender(Destinations(https_required=False, allowed=allowed))

    def of(self, tenant: str) -> Sender:
        """The sender for an account in its mode: `acct_…/test`."""
        return self._test if tenant.endswith("/test") else self._live
