"""The module in a real Chromium, against a real server: one order, whatever happens to the page."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

import oncekey
from oncekey.client import browser
from oncekey.web.asgi import IdempotencyMiddleware
from tests.client.browser.site import Site

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

WAIT_MS = 30_000
NO_LOCAL_STORAGE = "Object.defineProperty(window, 'localStorage', { value: undefined })"
NO_DATABASE = "Object.defineProperty(window, 'indexedDB', { value: undefined })"
SETTLED = """async () => {
  const { Client } = await import("/oncekey.js");
  while ((await new Client().unsettled()).length > 0) {
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}"""
UNSETTLED = """async () => {
  const { Client } = await import("/oncekey.js");
  return (await new Client().unsettled()).length;
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


def press(page: Page, name: str = "Order a mug") -> None:
    page.get_by_role("button", name=name).click()


def await_order(page: Page, site: Site) -> None:
    """The page names the one order there is."""
    page.get_by_text("Ordered: order_").wait_for()
    [[order, _]] = site.orders()
    assert order in page.inner_text("#says")


def await_settled(page: Page) -> None:
    page.evaluate(SETTLED)  # unlike `wait_for_function`, it awaits what the page promises


def test_a_double_click_orders_once(context: BrowserContext, site: Site) -> None:
    page = opened(context, site)
    site.free.clear()

    page.get_by_role("button", name="Order a mug").dblclick()
    site.await_posts(2)
    assert page.evaluate(UNSETTLED) == 1
    site.free.set()

    await_order(page, site)
    assert len(set(site.keys)) == 1
    await_settled(page)


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
    assert page.evaluate(UNSETTLED) == 1

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


@pytest.mark.usefixtures("kept")
def test_after_the_answer_the_order_is_the_one_that_there_is(
    context: BrowserContext, site: Site
) -> None:
    """Pressed again, after a reload, in another tab, and without a network."""
    page = opened(context, site)
    press(page)
    await_order(page, site)
    await_settled(page)

    press(page)
    page.get_by_text("as you were told before").wait_for()
    page.reload()
    other = opened(context, site)
    context.set_offline(True)
    for tab in (page, other):
        press(tab)
        tab.get_by_text("as you were told before").wait_for()
        await_order(tab, site)

    assert len(site.keys) == 1


def test_another_order_is_another_one(context: BrowserContext, site: Site) -> None:
    page = opened(context, site)
    press(page)
    await_order(page, site)
    press(page, "Order another one")
    page.wait_for_function(
        "() => document.querySelector('#says').textContent.startsWith('Ordered')"
    )
    until_orders(site, 2)
    press(page)
    page.get_by_text("as you were told before").wait_for()

    assert len(site.orders()) == len(set(site.keys)) == len(site.keys) == 2


def until_orders(site: Site, count: int) -> None:
    site.await_posts(count)
    assert len(set(site.keys)) == count


SIGNED_OUT = """async () => {
  const { Client, outcomeOf, usualShelf } = await import("/oncekey.js");
  const order = { method: "POST", body: '{"item": "tea"}', intent: "tea" };
  const send = async (account) => {
    const answer = await new Client({ account }).fetch("/orders", order);
    return `${outcomeOf(answer).remembered} ${(await answer.json()).id}`;
  };
  const [ada, bob] = [await send("ada"), await send("bob")];
  const again = [await send("ada"), await send("bob")];
  await new Client({ account: "ada" }).signOut();
  const kept = (await usualShelf().all("oncekey/intent")).map(({ account }) => account);
  return [ada, bob, ...again, ...kept];
}"""


@pytest.mark.usefixtures("kept")
def test_accounts_are_kept_apart_and_sign_out_forgets_one(
    context: BrowserContext, site: Site
) -> None:
    page = opened(context, site)
    ada, bob, adas, bobs, *kept = page.evaluate(SIGNED_OUT)

    assert ada.split()[0] == bob.split()[0] == "false"
    assert ada != bob
    assert adas.split() == ["true", ada.split()[1]]
    assert bobs.split() == ["true", bob.split()[1]]
    assert kept == ["bob"]


# ----------------------------------------------------------------------- the ten lines of the docs

DOCS = Path(__file__).parents[3] / "docs" / "browser.md"


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Site]:
    """The docs' page, and a server that charges."""
    lines = re.findall(r"```html\n(.*?)```", DOCS.read_text(), re.S)[0]
    page = f"<!doctype html><title>Shop</title><button id='pay'>Pay</button>{lines}"
    charges = []

    async def charge(request: Request) -> JSONResponse:
        charges.append(await request.json())
        return JSONResponse({"charge": len(charges)}, 201)

    def count(request: Request) -> JSONResponse:
        return JSONResponse([len(charges)])

    def module(request: Request) -> Response:
        return Response(browser.module().body, headers=browser.module().headers)

    app = Starlette(
        routes=[
            Route("/", lambda request: HTMLResponse(page)),
            Route("/oncekey.js", module),
            Route("/charges", charge, methods=["POST"]),
            Route("/orders", count),
        ]
    )
    app.add_middleware(
        IdempotencyMiddleware,
        store=f"sqlite:///{tmp_path / 'keys.db'}",
        tenant=oncekey.single_tenant,
        policy=oncekey.Policy(required=True, recovery="block"),
    )
    with Site(tmp_path, app) as site:
        yield site


def test_three_clicks_on_the_ten_lines_are_one_charge(context: BrowserContext, shop: Site) -> None:
    """Each after the answer to the one before, which is when the key was dropped."""
    page = opened(context, shop)
    press(page, "Pay")
    shop.await_posts(1)
    await_settled(page)
    for _ in range(2):
        press_for_the_same(page)

    assert shop.orders() == [1]
    assert len(shop.keys) == 1


def press_for_the_same(page: Page) -> None:
    """The page says that this is no new answer."""
    with page.expect_console_message(lambda said: "had arrived after all" in said.text):
        press(page, "Pay")


def test_clicks_on_the_ten_lines_over_reloads_and_lost_answers_are_one_charge(
    context: BrowserContext, shop: Site
) -> None:
    shop.faults = ["lost", "503"]
    page = opened(context, shop)
    for _ in range(3):
        press(page, "Pay")
        shop.await_posts(1)
        page.reload()
    press(page, "Pay")
    await_settled(page)
    press_for_the_same(page)

    assert shop.orders() == [1]
    assert len(set(shop.keys)) == 1


PAID_THRICE = """async () => {
  const { Client, outcomeOf } = await import("/oncekey.js");
  const api = new Client({ retries: { backoffS: 0.01 } });
  const charge = { method: "POST", body: '{"amount": 2000}', intent: "cart-8/pay" };
  const pay = async () => {
    const answer = await api.fetch("/charges", charge);
    const { settled, replayed, remembered } = outcomeOf(answer);
    return [answer.redirected, settled, replayed, remembered];
  };
  return [await pay(), await pay(), await pay()];
}"""


def test_a_login_page_is_no_answer_and_keeps_the_key(context: BrowserContext, shop: Site) -> None:
    """The first was carried out, and its answer lost; its retry finds that the session is over."""
    shop.faults = ["lost", "login"]
    page = opened(context, shop)
    told = page.evaluate(PAID_THRICE)

    assert told[0] == [True, False, False, False]
    assert told[1] == [False, True, True, False]
    assert told[2] == [False, True, True, True]
    assert shop.orders() == [1]
    assert len(shop.keys) == 3
    assert len(set(shop.keys)) == 1


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

    assert page.inner_text("#says").startswith("no-storage: The key cannot be stored")
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

    assert said.startswith("no-storage: The key cannot be stored, so nothing was sent")
    assert "did not answer within 0.05 s" in said
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

    page.evaluate("""async () => {
      while (!(await api.key("after").catch(() => undefined))) {
        await new Promise((resolve) => setTimeout(resolve, 10));
      }
    }""")
    assert page.evaluate(UNSETTLED) == 1


def test_a_disk_without_room_sends_nothing(context: BrowserContext, site: Site) -> None:
    page = opened(context, site)
    devtools = context.new_cdp_session(page)
    devtools.send("Storage.overrideQuotaForOrigin", {"origin": site.url, "quotaSize": 1})
    press(page)

    page.get_by_text("cannot be stored, so nothing was sent: QuotaExceededError").wait_for()
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
