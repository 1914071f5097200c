"""The reference page, in a real browser and without any other server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from payments.api import reference
from tests.payments.api_client import Api
from tests.payments.api_process import ApiProcess

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


def test_it_is_made_of_its_own_files(api: Api) -> None:
    for path, (_, kind) in reference.FILES.items():
        response = api.client.get(path)
        assert (response.status_code, response.headers["content-type"]) == (200, kind)
        assert "default-src 'self'" in response.headers["content-security-policy"]
        assert "://" not in response.text


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiProcess]:
    with ApiProcess(tmp_path_factory.mktemp("reference")) as server:
        yield server


@pytest.fixture
def page(chromium: Browser, server: ApiProcess) -> Iterator[Page]:
    page = chromium.new_page()
    asked: list[str] = []
    failed: list[Any] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: failed.append(error))
    page.goto(f"{server.url}/docs")
    yield page
    page.close()
    assert not failed
    assert {urlsplit(url).netloc for url in asked} == {urlsplit(server.url).netloc}


@pytest.mark.slow
def test_a_request_is_sent_and_sent_again(page: Page) -> None:
    route = page.locator("details", has=page.get_by_text("Create Charge", exact=True))
    route.locator("summary").click()
    assert route.get_by_label("amount").input_value() == "2000"
    route.get_by_role("button", name="Send", exact=True).click()
    answer = route.locator("pre")
    answer.get_by_text("200").wait_for()
    first = answer.inner_text()
    assert '"status": "succeeded"' in first
    assert "idempotent-replayed" not in first
    route.get_by_role("button", name="Send again with the same key").click()
    answer.get_by_text("idempotent-replayed: true").wait_for()
    assert first[first.index("{") :] == answer.inner_text()[answer.inner_text().index("{") :]


@pytest.mark.slow
def test_it_can_be_used_by_keyboard(page: Page) -> None:
    route = page.locator("details", has=page.get_by_text("Retrieve Balance", exact=True))
    route.locator("summary").focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    route.locator("pre").get_by_text("200").wait_for()
    assert '"object": "balance"' in route.locator("pre").inner_text()


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 390, 1280])
def test_nothing_sticks_out(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.locator("details").first.wait_for()
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.slow
def test_it_works_over_plain_http_too(page: Page) -> None:
    """From another machine, where browsers have less to offer."""
    page.add_init_script("delete Crypto.prototype.randomUUID")
    page.reload()
    route = page.locator("details", has=page.get_by_text("Create Charge", exact=True))
    route.locator("summary").click()
    route.get_by_role("button", name="Send", exact=True).click()
    route.locator("pre").get_by_text("200").wait_for()
