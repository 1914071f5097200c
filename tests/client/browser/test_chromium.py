"""The module in a real Chromium, against a real server: one order, whatever happens to the page."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.client.browser.site import Site

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

WAIT_MS = 30_000
NO_LOCAL_STORAGE = "Object.defineProperty(window, 'localStorage', { value: undefined })"
NO_DATABASE = "Object.defineProperty(window, 'indexedDB', { value: undefined })"
KEPT = """async () => {
  const { usualShelf } = await import("/oncekey.js");
  return (await usualShelf().all("oncekey/intent/")).length;
}"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path) as site:
        yield site


@pytest.fixture
def context(chromium: Browser) -> Iterator[BrowserContext]:
    context = chromium.new_context()
    context.set_default_timeout(WAIT_MS)
    yield context
    context.close()


@pytest.fixture(params=["IndexedDB", "localStorage"])
def kept(request: pytest.FixtureRequest, context: BrowserContext) -> str:
    """Where the keys are kept: as usual, or in a browser that has no database."""
    if request.param == "localStorage":
        context.add_init_script(NO_DATABASE)
    return str(request.param)


def opened(context: BrowserContext, site: Site) -> Page:
    page = context.new_page()
    page.goto(site.url)
    return page


def press(page: Page) -> None:
    page.get_by_role("button").click()


def await_order(page: Page, site: Site) -> None:
    """The page names the one order there is."""
    page.get_by_text("Ordered: order_").wait_for()
    [[order, _]] = site.orders()
    assert order in page.inner_text("#says")


def await_dropped(page: Page) -> None:
    page.wait_for_function(f"async () => (await ({KEPT})()) === 0")


def test_a_double_click_orders_once(context: BrowserContext, site: Site) -> None:
    page = opened(context, site)
    site.free.clear()

    page.get_by_role("button").dblclick()
    site.await_posts(2)
    assert page.evaluate(KEPT) == 1
    site.free.set()

    await_order(page, site)
    assert len(set(site.keys)) == 1
    await_dropped(page)


@pytest.mark.usefixtures("kept")
def test_a_reload_in_the_middle_goes_on_with_the_same_key(
    context: BrowserContext, site: Site
) -> None:
    page = opened(context, site)
    site.free.clear()
    press(page)
    site.await_posts(1)

    page.reload()
    site.await_posts(2)
    site.free.set()

    await_order(page, site)
    assert len(set(site.keys)) == 1


def test_a_tab_that_is_closed_leaves_the_key_to_the_next(
    context: BrowserContext, site: Site
) -> None:
    site.faults = ["lost"]
    first = opened(context, site)
    first.clock.install()  # time stands still: no retry of its own
    press(first)
    site.await_posts(1)
    first.close()

    await_order(opened(context, site), site)
    assert len(set(site.keys)) == 1


def test_two_tabs_send_one_key(context: BrowserContext, site: Site) -> None:
    tabs = [opened(context, site), opened(context, site)]
    site.free.clear()

    for tab in tabs:
        press(tab)
    site.await_posts(2)
    site.free.set()

    for tab in tabs:
        await_order(tab, site)
    assert len(set(site.keys)) == 1


def test_tabs_that_write_at_once_lose_nothing(context: BrowserContext, site: Site) -> None:
    """Each tab is a process. In localStorage a third would be lost, locks or not."""
    tabs = [opened(context, site) for _ in range(3)]
    for tab in tabs:
        tab.evaluate("""async () => {
          const shelf = (await import("/oncekey.js")).usualShelf();
          const add = () => shelf.update("count", (before = 0) => before + 1);
          globalThis.added = Promise.all(Array.from({ length: 50 }, add));
        }""")
    for tab in tabs:
        tab.evaluate("() => added")

    count = """async () => (await import("/oncekey.js")).usualShelf().all("count")"""
    assert tabs[0].evaluate(count) == [150]


def test_calls_at_once_begin_one_intent(context: BrowserContext, site: Site, kept: str) -> None:
    page = opened(context, site)
    begin = """async () => {
      const { Client } = await import("/oncekey.js");
      const claim = () => new Client().key("one");
      return new Set(await Promise.all(Array.from({ length: 50 }, claim))).size;
    }"""

    assert page.evaluate(begin) == 1
    assert page.evaluate("localStorage.length") == int(kept == "localStorage")


def test_offline_and_back(context: BrowserContext, site: Site) -> None:
    page = opened(context, site)
    context.set_offline(True)
    press(page)
    page.get_by_text("You are offline.").wait_for()
    assert site.keys == []
    assert page.evaluate(KEPT) == 1

    context.set_offline(False)

    await_order(page, site)


@pytest.mark.parametrize("fault", ["lost", "truncated", "503", "reset"])
def test_answers_that_do_not_arrive_are_asked_for_again(
    context: BrowserContext, site: Site, fault: str
) -> None:
    site.faults = [fault, fault]
    page = opened(context, site)
    press(page)

    await_order(page, site)
    assert len(site.keys) == 3
    assert len(set(site.keys)) == 1
    told_before = fault in ("lost", "truncated")
    assert ("as you were told before" in page.inner_text("#says")) is told_before


def test_after_the_answer_a_new_order_is_a_new_one(context: BrowserContext, site: Site) -> None:
    page = opened(context, site)
    press(page)
    await_order(page, site)
    await_dropped(page)

    page.reload()
    press(page)
    page.get_by_text("Ordered: order_").wait_for()

    assert len(site.orders()) == len(set(site.keys)) == 2


def test_what_cannot_be_kept_is_not_sent(context: BrowserContext, site: Site) -> None:
    context.add_init_script(f"{NO_LOCAL_STORAGE}; {NO_DATABASE}")
    page = opened(context, site)
    page.evaluate("""async () => {
      const { Client } = await import("/oncekey.js");
      const refused = await new Client()
        .fetch("/orders", { method: "POST", body: "{}", intent: "order" })
        .catch((error) => error);
      document.querySelector("#says").textContent = `${refused.kind}: ${refused.message}`;
    }""")

    assert page.inner_text("#says").startswith("no-storage: The key cannot be kept")
    assert site.keys == []


def test_storage_that_never_answers_sends_nothing(context: BrowserContext, site: Site) -> None:
    """As a browser does whose profile is damaged, or in use by another one."""
    context.add_init_script("IDBFactory.prototype.open = () => ({})")
    page = opened(context, site)
    said = page.evaluate("""async () => {
      const { Client } = await import("/oncekey.js");
      return await new Client({ shelfS: 0.05 })
        .fetch("/orders", { method: "POST", body: "{}", intent: "order" })
        .catch((error) => `${error.kind}: ${error.message}`);
    }""")

    assert said.startswith("no-storage: The key cannot be kept, so nothing was sent")
    assert "gave no answer within 0.05 s" in said
    assert site.keys == []


def test_who_waits_for_ever_is_not_late_at_once(context: BrowserContext, site: Site) -> None:
    page = opened(context, site)
    said = page.evaluate("""async () => {
      const { Client } = await import("/oncekey.js");
      return await new Client({ shelfS: Infinity })
        .fetch("/orders", { method: "POST", body: '{"item": "tea"}', intent: "order" })
        .then((answer) => `${answer.status}`, (error) => `${error.kind}: ${error.message}`);
    }""")

    assert said == "201"


def test_who_clears_the_site_s_data_can_go_on(context: BrowserContext, site: Site) -> None:
    """The browser closes the database below the page."""
    page = opened(context, site)
    page.evaluate("""async () => {
      const { Client } = await import("/oncekey.js");
      globalThis.api = new Client();
      await api.key("before");
    }""")
    devtools = context.new_cdp_session(page)
    devtools.send("Storage.clearDataForOrigin", {"origin": site.url, "storageTypes": "indexeddb"})

    page.wait_for_function("async () => await api.key('after').catch(() => undefined)")
    assert page.evaluate(KEPT) == 1


def test_a_disk_without_room_sends_nothing(context: BrowserContext, site: Site) -> None:
    page = opened(context, site)
    devtools = context.new_cdp_session(page)
    devtools.send("Storage.overrideQuotaForOrigin", {"origin": site.url, "quotaSize": 1})
    press(page)

    page.get_by_text("cannot be kept, so nothing was sent: QuotaExceededError").wait_for()
    assert site.keys == []


def test_a_worker_and_its_page_share_one_key(context: BrowserContext, site: Site) -> None:
    """A worker has no localStorage, and no document."""
    page = opened(context, site)
    keys = page.evaluate("""async () => {
      const text = `
        import { Client } from "${location.origin}/oncekey.js";
        new Client().key("one", { origin: "${location.origin}" }).then(postMessage);
      `;
      const made = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
      const worker = new Worker(made, { type: "module" });
      const theirs = await new Promise((resolve, reject) => {
        worker.onmessage = ({ data }) => resolve(data);
        worker.onerror = reject;
      });
      const { Client } = await import("/oncekey.js");
      return [theirs, await new Client().key("one")];
    }""")

    assert len(set(keys)) == 1
