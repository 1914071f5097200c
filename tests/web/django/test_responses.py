"""What a view answers, kept: exceptions, templates, streams, forms."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import BadRequest
from django.http import (
    FileResponse,
    Http404,
    HttpRequest,
    HttpResponse,
    StreamingHttpResponse,
)
from django.template import Context, Engine
from django.template.response import SimpleTemplateResponse

import oncekey
from oncekey import Policy
from tests.web.django.site import Site, body_of, ordering, told


@pytest.mark.parametrize(
    ("raised", "status", "replayed"),
    [(Http404, 404, True), (BadRequest, 400, True), (ValueError, 500, False)],
)
def test_e38_e40_an_exception_of_the_view_is_its_answer_or_none(
    site: Site, raised: type[Exception], status: int, replayed: bool
) -> None:
    site.oncekey["policy"] = Policy(keep=oncekey.keep_errors_too)

    def order(request: HttpRequest) -> HttpResponse:
        site.run()
        raise raised

    site.route("orders", site.both(order))
    first, again = site.ask("k1"), site.ask("k1")
    assert (first.status, again.status, again.replayed) == (status, status, replayed)
    assert site.runs == (1 if replayed else 2)


def test_a_mistake_that_the_view_finds_can_be_said_to_spend_nothing(site: Site) -> None:
    def order(request: HttpRequest) -> HttpResponse:
        if "item" not in body_of(request):
            oncekey.current().no_effect()
            return told({"error": "no item"}, 422)
        return told({"run": site.run()}, 201)

    site.route("orders", site.both(order))
    assert site.ask("k1", {}).status == 422
    assert site.ask("k1", {"item": "tea"}).status == 201


def test_a_template_is_kept_as_it_was_rendered(site: Site) -> None:
    template = Engine().from_string("run {{ run }}")

    class Rendered(SimpleTemplateResponse):  # type: ignore[misc]
        @property
        def rendered_content(self) -> str:
            return str(template.render(Context(self.context_data)))

    def order(request: HttpRequest) -> HttpResponse:
        return Rendered(template, {"run": site.run()})

    site.route("orders", site.both(order))
    first, again = site.ask("k1"), site.ask("k1")
    assert (first.body, again.body, again.replayed) == (b"run 1", b"run 1", True)


# As Django itself warns, of streams that do not fit their handler.
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
def test_e60_a_stream_is_kept_whole_and_one_that_is_too_large_flows(site: Site) -> None:
    site.oncekey["policy"] = Policy(answer_bytes_max=100)

    def parts(count: int) -> Iterator[bytes]:
        site.run()
        yield from (b"part %d\n" % n for n in range(count))

    async def async_parts(count: int) -> AsyncIterator[bytes]:
        for part in parts(count):
            yield part

    def order(request: HttpRequest, count: int) -> HttpResponse:
        made = async_parts(count) if "async" in site.handler else parts(count)
        return StreamingHttpResponse(made, content_type="text/plain")

    site.route("parts/<int:count>", site.both(order))
    first, again = site.ask("k1", path="/parts/3"), site.ask("k1", path="/parts/3")
    assert (first.body, again.body) == (b"part 0\npart 1\npart 2\n",) * 2
    large = site.ask("k2", path="/parts/50")
    assert large.body.endswith(b"part 49\n")
    assert site.ask("k2", path="/parts/50").kind == "answer-not-kept"
    assert site.runs == 2


@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
def test_a_stream_that_breaks_before_it_is_recorded_says_that_nobody_knows(site: Site) -> None:
    site.oncekey["policy"] = Policy(recovery="block")

    def parts() -> Iterator[bytes]:
        yield b"begun"
        site.run()
        raise OSError("the bank hung up")

    async def async_parts() -> AsyncIterator[bytes]:
        for part in parts():
            yield part

    def order(request: HttpRequest) -> HttpResponse:
        return StreamingHttpResponse(async_parts() if "async" in site.handler else parts())

    site.route("orders", site.both(order))
    first, again = site.ask("k1"), site.ask("k1")
    assert (first.status, first.header("idempotency-outcome")) == (500, "unknown")
    assert first.header("x-should-retry") == "false"
    assert (again.kind, site.runs) == ("outcome-unknown", 1)


@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_what_a_view_streams_without_a_key_has_an_attempt_too(site: Site, method: str) -> None:
    def parts() -> Iterator[str]:
        for _ in range(2):
            yield f"{oncekey.current().operation} {oncekey.current().protected};"

    async def async_parts() -> AsyncIterator[str]:
        for part in parts():
            yield part

    def order(request: HttpRequest) -> HttpResponse:
        return StreamingHttpResponse(async_parts() if "async" in site.handler else parts())

    site.route("orders", site.both(order))
    assert site.ask(None, method=method).body == f"{method} /orders False;".encode() * 2


@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
def test_a_file_without_a_key_is_sent_as_it_is(site: Site, tmp_path: Path) -> None:
    (tmp_path / "receipt").write_bytes(b"paid")

    def order(request: HttpRequest) -> HttpResponse:
        return FileResponse((tmp_path / "receipt").open("rb"))

    site.route("orders", site.both(order))
    assert site.ask(None).body == b"paid"


def test_e22_a_form_that_the_csrf_check_reads_is_compared_all_the_same(site: Site) -> None:
    ordering(site)

    def form(item: str, boundary: str) -> dict[str, Any]:
        parts = {"csrfmiddlewaretoken": "x" * 32, "item": item}
        body = "".join(
            f'--{boundary}\r\nContent-Disposition: form-data; name="{n}"\r\n\r\n{v}\r\n'
            for n, v in parts.items()
        )
        return {
            "body": f"{body}--{boundary}--\r\n".encode(),
            "content_type": f"multipart/form-data; boundary={boundary}",
            "headers": {"x-csrftoken": None},
        }

    assert site.ask("k1", **form("tea", "aaa")).status == 201
    assert site.ask("k1", **form("tea", "bbb")).replayed
    assert site.ask("k1", **form("coffee", "aaa")).kind == "mismatch"
