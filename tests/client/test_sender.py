"""One set of rules for all requests of a client: what becomes of a request that is sent again."""

from __future__ import annotations

import inspect
from typing import get_type_hints

from oncekey._system.clock import FakeClock
from oncekey.client._key_placement import OutgoingRequest
from oncekey.client._sender import Options, RequestSender


def test_a_request_that_its_caller_sends_again_is_as_old_as_it_was() -> None:
    """Also one whose key is the caller's own, and stands in it: counted anew, its retries would go
    on when the server has forgotten the key.
    """
    clock = FakeClock()
    sender = RequestSender(clock=clock)
    request = OutgoingRequest(
        "POST", "https://pay.example/charges", {"idempotency-key": "k1"}, b"{}"
    )
    first = sender.plan(request, body=b"{}")
    clock.advance(3600.0)
    again = sender.plan(request, first.mark, b"{}")
    assert (again.key, again.until, again.mark) == (first.key, first.until, first.mark)


def test_an_editor_offers_every_option_and_no_other() -> None:
    taken = inspect.signature(RequestSender.__init__, eval_str=True).parameters
    types = {name: each.annotation for name, each in taken.items() if name != "self"}

    assert get_type_hints(Options) == types
