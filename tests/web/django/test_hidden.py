"""What guarded views of Django do not see, and what is outside of them does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponse
from django.test.utils import override_settings

import oncekey
from oncekey._core.record import State
from tests.web.django.site import Site, told
from tests.web.test_hidden_headers import ANY, HIDDEN, SHOWN

SEEN: list[dict[str, str]] = []


def of(request: HttpRequest) -> dict[str, str]:
    return {n.lower(): text for n, text in request.headers.items() if n.lower() in HIDDEN | SHOWN}


class Looking:
    """Looks at the headers after the view, as middleware does that compresses."""

    sync_capable = async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        return self._answer(request) if iscoroutinefunction(self) else self._look(request)

    def _look(self, request: HttpRequest) -> HttpResponse:
        answer: HttpResponse = self.get_response(request)
        SEEN.append(of(request))
        return answer

    async def _answer(self, request: HttpRequest) -> HttpResponse:
        answer: HttpResponse = await self.get_response(request)
        SEEN.append(of(request))
        return answer


def test_e58_what_is_said_of_one_client_is_hidden(site: Site) -> None:
    SEEN.clear()
    site.middleware.insert(-1, f"{__name__}.Looking")

    def order(request: HttpRequest) -> HttpResponse:
        SEEN.append(of(request))
        lines = [name for name, _ in getattr(request, "scope", {}).get("headers", ())]
        assert not {name.decode() for name in lines} & (HIDDEN.keys() - {"if-none-match"})
        return told({"run": site.run()})

    with override_settings(MIDDLEWARE=site.middleware):
        site.route("orders", site.both(order))
        assert site.ask("k1", headers=HIDDEN | SHOWN).status == 200
        assert [SHOWN, HIDDEN | SHOWN] == SEEN
        assert site.ask("k1").replayed
        SEEN.clear()
        site.ask("k2", headers=ANY)
        assert {text.strip() for text in SEEN[0].values()} == {"*"}


def test_e58_what_answers_a_condition_is_never_stored(site: Site) -> None:
    def order(request: HttpRequest) -> HttpResponse:
        oncekey.current().final()
        return HttpResponse(status=412 if site.run() == 1 else 201)

    site.route("orders", site.both(order))
    assert site.ask("k1").status == 412
    assert [(each.state, each.no_effect) for each in site.records()] == [(State.RELEASED, True)]
    assert [site.ask("k1").replayed for _ in range(2)] == [False, True]
