"""The checkout page in a real Chromium, on the whole system: however Pay is pressed, and whatever
goes wrong meanwhile, the card network has one charge of the order in its own file.
"""

from __future__ import annotations

import os
import re
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from payments.network import FAULTS
from tests.payments.contrast import contrasts
from tests.payments.run_command import RunCommand, children_of, until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

WAIT_MS = 50_000


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunCommand]:
    running = RunCommand(tmp_path_factory.mktemp("checkout"))
    until(running.answers, "the system to run")
    yield running
    running.close()


@pytest.fixture
def context(chromium: Browser) -> Iterator[BrowserContext]:
    context = chromium.new_context(reduced_motion="reduce")
    context.set_default_timeout(WAIT_MS)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext, running: RunCommand) -> Page:
    return opened(context, running)


def opened(context: BrowserContext, running: RunCommand) -> Page:
    page = context.new_page()
    page.goto(f"http://127.0.0.1:{running.port}/")
    page.wait_for_selector("#fault-slow")
    page.wait_for_function("() => document.querySelector('#way').childElementCount === 7")
    return page


def shows(page: Page, id_: str, text: str) -> None:
    page.wait_for_function(
        "([id, text]) => document.getElementById(id).textContent === text", arg=[id_, text]
    )


def shows_at_least(page: Page, id_: str, number: int) -> None:
    page.wait_for_function(
        "([id, number]) => Number(document.getElementById(id).textContent) >= number",
        arg=[id_, number],
    )


def await_paid(page: Page, running: RunCommand) -> str:
    """The order is paid, once: as the page shows it, and as the network's file has it."""
    page.get_by_text("Paid").wait_for()
    shows(page, "charges", "1")
    shows(page, "moved", "24.00")
    [charge] = re.findall(r"ch_\w+", page.inner_text("#says"))
    assert captures(running, charge) == [2400]
    page.evaluate("""async () => {
      const { Client } = await import("/oncekey.js");
      while ((await new Client().unsettled()).length > 0) {
        await new Promise((resolve) => setTimeout(resolve, 10));
      }
    }""")
    return str(charge)


def captures(running: RunCommand, charge: str) -> list[int]:
    with closing(sqlite3.connect(running.data / "network.db")) as book:
        query = "SELECT amount FROM transactions WHERE kind = 'capture' AND reference = ?"
        return [amount for (amount,) in book.execute(query, (charge,))]


def all_captures(running: RunCommand) -> int:
    with closing(sqlite3.connect(running.data / "network.db")) as book:
        query = "SELECT count(*) FROM transactions WHERE kind = 'capture'"
        count: int = book.execute(query).fetchone()[0]
        return count


def all_delivered(running: RunCommand) -> bool:
    with closing(sqlite3.connect(running.data / "payments.db")) as file:
        query = "SELECT count(*) FROM deliveries WHERE status = 'pending'"
        return not file.execute(query).fetchone()[0]


@contextmanager
def frozen_network(running: RunCommand) -> Iterator[None]:
    """Whoever asks the card network waits until the end of this."""
    pid = children_of(running.process.pid)["network"]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def await_arrivals(page: Page, count: int) -> None:
    page.wait_for_function(
        """(count) => [...document.querySelectorAll("#log .what")]
          .filter(({ textContent }) => textContent === "a request arrives").length >= count""",
        arg=count,
    )


# --------------------------------------------------------------------- however it is pressed


def test_a_double_click(page: Page, running: RunCommand) -> None:
    before = all_captures(running)
    with frozen_network(running):
        page.locator("#pay").dblclick()
        await_arrivals(page, 2)

    await_paid(page, running)
    shows(page, "clicks", "2")
    shows_at_least(page, "requests", 2)
    assert all_captures(running) == before + 1


def test_pressed_again_when_it_is_paid(page: Page, running: RunCommand) -> None:
    page.click("#pay")
    charge = await_paid(page, running)
    assert re.search(r"1\s+click\s+1\s+request\s+1\s+charge\s", page.inner_text(".tally"))
    before = all_captures(running)
    page.click("#pay")

    page.get_by_text(f"Paid already: {charge}").wait_for()
    shows(page, "clicks", "2")
    shows(page, "clicks-word", "clicks")
    assert all_captures(running) == before


def test_pressed_again_when_the_page_has_lost_its_own_note(page: Page, running: RunCommand) -> None:
    """As when it was left between the answer and the note: the client still has the answer."""
    page.click("#pay")
    charge, before = await_paid(page, running), all_captures(running)
    page.evaluate("""async () => {
      const { usualShelf } = await import("/oncekey.js");
      const { id } = JSON.parse(localStorage.getItem("checkout/order"));
      await usualShelf().update(`checkout/paid/${id}`, () => undefined);
    }""")
    page.reload()
    page.wait_for_selector("#fault-slow")
    page.click("#pay")

    page.get_by_text(f"Paid already: {charge}").wait_for()
    assert all_captures(running) == before


def test_a_reload_in_the_middle(page: Page, running: RunCommand) -> None:
    before = all_captures(running)
    with frozen_network(running):
        page.click("#pay")
        await_arrivals(page, 1)
        page.reload()
        await_arrivals(page, 2)

    await_paid(page, running)
    shows(page, "clicks", "1")
    shows_at_least(page, "requests", 2)
    assert all_captures(running) == before + 1


def test_offline_and_back(page: Page, context: BrowserContext, running: RunCommand) -> None:
    context.set_offline(True)
    page.click("#pay")
    page.get_by_text("You are offline.").wait_for()
    context.set_offline(False)

    await_paid(page, running)


def test_two_tabs(page: Page, context: BrowserContext, running: RunCommand) -> None:
    other, before = opened(context, running), all_captures(running)
    with frozen_network(running):
        page.click("#pay")
        other.click("#pay")
        await_arrivals(page, 2)

    assert await_paid(page, running) == await_paid(other, running)
    shows(page, "clicks", "2")
    shows(other, "clicks", "2")
    assert all_captures(running) == before + 1


def test_a_tab_that_nobody_sees_leaves_its_connection_to_others(
    page: Page, context: BrowserContext, running: RunCommand
) -> None:
    """A browser has six of them for a host, for all tabs. Seen again, it misses nothing."""
    other = opened(context, running)
    seen(other, False)
    asked: list[str] = []
    other.on("request", lambda request: asked.append(request.url))
    page.click("#pay")
    await_paid(page, running)
    for _ in range(2):  # as long as one lasts
        page.wait_for_event("request", lambda request: "/demo/watch" in request.url)
    assert not [url for url in asked if "/demo/watch" in url]

    seen(other, True)
    await_arrivals(other, 1)
    await_paid(other, running)


def seen(page: Page, is_seen: bool) -> None:
    """What a browser tells a page when another tab is brought before it, or it before others."""
    page.evaluate(
        """(seen) => {
          Object.defineProperty(document, "hidden", { value: !seen, configurable: true });
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        is_seen,
    )


def test_another_order_is_another_charge(page: Page, running: RunCommand) -> None:
    page.click("#pay")
    first = await_paid(page, running)
    page.click("#another")
    shows(page, "charges", "0")
    shows(page, "clicks", "0")
    page.click("#pay")

    assert await_paid(page, running) != first


LISTEN = """() => {
  window.said = [];
  const says = document.getElementById("says");
  new MutationObserver((changes) => {
    for (const { addedNodes } of changes) said.push(...[...addedNodes].map((n) => n.textContent));
  }).observe(says, { childList: true });
}"""
"""What the page says is kept, also what the next order soon replaces."""

HOLD = """async () => {
  const database = await new Promise((done) => {
    indexedDB.open("oncekey").onsuccess = ({ target }) => done(target.result);
  });
  const values = database.transaction("values", "readwrite").objectStore("values");
  const again = () => {
    if (!window.letGo) values.get("nothing").onsuccess = again;
  };
  again();
}"""
"""Whoever wants to write to what all tabs share waits until `letGo`."""


def test_what_is_paid_stays_paid_for_a_tab_that_is_late(
    page: Page, context: BrowserContext, running: RunCommand
) -> None:
    page.click("#pay")
    await_paid(page, running)
    other, before = opened(context, running), all_captures(running)
    shows(other, "charges", "1")
    page.evaluate(LISTEN)
    page.evaluate(HOLD)
    page.click("#pay")
    other.click("#another")
    page.evaluate("letGo = true")

    other.wait_for_selector("#another", state="hidden")
    page.wait_for_function("() => said.some((text) => text.startsWith('Paid already'))")
    assert all_captures(running) == before


def test_an_answer_that_is_late_says_nothing_of_the_next_order(
    page: Page, context: BrowserContext, running: RunCommand
) -> None:
    other, held = opened(context, running), list[Any]()
    page.evaluate(LISTEN)
    page.route("**/v1/charges", lambda route: held.append(route))
    page.click("#pay")
    other.click("#pay")
    first = await_paid(other, running)
    page.get_by_text(first).wait_for()
    other.click("#another")
    page.wait_for_selector("#another", state="hidden")
    page.evaluate("said.length = 0")
    with page.expect_response("**/v1/charges") as answered:
        held.pop().continue_()
    answered.value.finished()
    page.unroute("**/v1/charges")
    page.click("#pay")

    assert await_paid(page, running) != first
    assert not [text for text in page.evaluate("said") if first in text]


# ---------------------------------------------------------------------- what the browser keeps


@pytest.mark.parametrize("value", ["{broken", "5", '"x"', "{}", "[]", '{"id": 7, "key": 7}'])
def test_what_is_no_order_is_not_taken_for_one(page: Page, running: RunCommand, value: str) -> None:
    page.evaluate("(value) => localStorage.setItem('checkout/order', value)", value)
    page.reload()
    page.wait_for_selector("#fault-slow")
    page.click("#pay")

    await_paid(page, running)


def test_where_nothing_can_be_kept_nothing_is_sent_and_the_page_says_so(
    context: BrowserContext, running: RunCommand
) -> None:
    """As in a browser whose cookies are off."""
    context.add_init_script("""
      const denied = () => { throw new DOMException("denied", "SecurityError"); };
      Object.defineProperty(window, "localStorage", { get: denied });
      IDBFactory.prototype.open = denied;
    """)
    page, before = opened(context, running), all_captures(running)
    page.get_by_text("keeps nothing").wait_for()
    page.evaluate("document.getElementById('says').textContent = ''")
    page.click("#pay")

    page.get_by_text("keeps nothing").wait_for()
    assert all_captures(running) == before


def test_an_order_whose_key_is_too_old_is_followed_by_another(
    page: Page, running: RunCommand
) -> None:
    page.evaluate("""async () => {
      const name = `checkout/${JSON.parse(localStorage.getItem("checkout/order")).id}/pay`;
      const begun = Date.now() / 1000 - 2 * 86_400;
      const intent = { name, key: "of-yesterday", begun, origin: location.origin, note: "" };
      const { usualShelf } = await import("/oncekey.js");
      await usualShelf().update(`oncekey/intent/${name}`, () => intent);
    }""")
    page.reload()
    page.get_by_text("hours ago").wait_for()
    page.click("#another")
    page.get_by_text("hours ago").wait_for(state="detached")
    page.click("#pay")

    page.get_by_text("Paid").wait_for()


# ------------------------------------------------------------------------ whatever goes wrong


@pytest.mark.parametrize("fault", [*FAULTS, "tunnel"])
def test_every_fault_ends_in_one_charge(page: Page, running: RunCommand, fault: str) -> None:
    before = all_captures(running)
    page.click(f"#fault-{fault}")
    page.wait_for_selector(f"#fault-{fault}[aria-checked=true]")
    page.click("#pay")

    await_paid(page, running)
    page.wait_for_selector(f"#fault-{fault}[aria-checked=false]")  # it met its request
    assert all_captures(running) == before + 1
    shows_at_least(page, "requests", 2 if fault == "tunnel" else 1)


def test_the_way_is_shown(page: Page, running: RunCommand) -> None:
    page.click("#fault-500-after")
    page.wait_for_selector("#fault-500-after[aria-checked=true]")
    page.click("#pay")
    await_paid(page, running)

    for part in ("client", "limiter", "key", "handler", "network", "ledger", "webhook"):
        page.wait_for_selector(f"#part-{part}.good")
    log = page.inner_text("#log")
    assert "answers 500; retried with the same key" in log
    assert "knows this key: charged before, not again" in log
    assert "2 entries, their sum is 0" in page.inner_text("#part-ledger")
    page.locator("#part-webhook", has_text="signed, delivered, processed once").wait_for()


def test_an_event_is_processed_once_although_its_answer_is_lost(
    page: Page, running: RunCommand
) -> None:
    until(lambda: all_delivered(running), "events of other orders to be delivered")
    page.click("#fault-webhook-answer")
    page.wait_for_selector("#fault-webhook-answer[aria-checked=true]")
    page.click("#pay")
    await_paid(page, running)

    page.locator("#part-webhook", has_text="sent 2 times, processed once").wait_for()
    page.wait_for_selector("#fault-webhook-answer[aria-checked=false]")
    page.locator("#log", has_text="a duplicate: processed before, not again").wait_for()
    told = page.locator("#log .what").all_inner_texts()[::-1]
    assert told[told.index("delivered, signed: attempt 1") :] == [
        "delivered, signed: attempt 1",
        "processed",
        "its answer is lost: it will be delivered again",
        "delivered, signed: attempt 2",
        "a duplicate: processed before, not again",
    ]


# -------------------------------------------------------------------------- for everybody


def test_keys_are_enough(page: Page, running: RunCommand) -> None:
    def tab_to(id_: str) -> None:
        for _ in range(30):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.id") == id_:
                outline = "getComputedStyle(document.activeElement).outlineStyle"
                assert page.evaluate(outline) != "none"
                return
        raise AssertionError(f"no way to {id_} by the keyboard")

    tab_to("fault-reset")
    page.keyboard.press("Space")
    page.wait_for_selector("#fault-reset[aria-checked=true]")
    tab_to("pay")
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")

    await_paid(page, running)
    tab_to("another")
    page.keyboard.press("Enter")
    shows(page, "clicks", "0")
    assert page.evaluate("document.activeElement.id") == "pay"


def test_an_answer_that_is_late_flips_no_switch_back(page: Page, running: RunCommand) -> None:
    before = page.evaluate("async () => (await fetch('/demo/faults')).text()")
    held = list[Any]()
    page.route("**/demo/faults", lambda route: route.continue_() if held else held.append(route))
    page.click("#pay")
    while not held:
        page.wait_for_timeout(10)
    page.click("#fault-500-before")
    page.wait_for_selector("#fault-500-before[aria-checked=true]")
    held[0].fulfill(body=before, content_type="application/json")
    page.evaluate("async () => (await fetch('/demo/faults')).text()")  # what was held is read

    assert page.get_attribute("#fault-500-before", "aria-checked") == "true"
    page.click("#fault-500-before")
    page.wait_for_selector("#fault-500-before[aria-checked=false]")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_in_light_and_dark(page: Page, running: RunCommand, scheme: Any) -> None:
    page.emulate_media(color_scheme=scheme)
    page.click("#fault-500-before")
    page.wait_for_selector("#fault-500-before[aria-checked=true]")
    assert not [found for found in contrasts(page) if found["ratio"] < 4.5]
    page.click("#pay")
    await_paid(page, running)

    assert not [found for found in contrasts(page) if found["ratio"] < 4.5]
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(246, 245, 242)"
    assert dark is (scheme == "dark")


@pytest.mark.parametrize("width", [320, 360, 768, 1280])
def test_nothing_sticks_out(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
