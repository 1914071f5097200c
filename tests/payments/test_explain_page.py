"""The explainer in a real Chromium: played forwards and backwards, by hand and by itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.payments.contrast import contrasts
from tests.payments.explainer import PATH
from tests.payments.page_server import PageServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SCENES = json.loads(PATH.read_text())["scenarios"]
CAPTIONS = [[frame["caption"] for frame in scene["frames"]] for scene in SCENES]


@pytest.fixture(scope="module")
def paging(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    with PageServer(tmp_path_factory.mktemp("pages")) as paging:
        yield paging


@pytest.fixture
def page(chromium: Browser, paging: PageServer) -> Iterator[Page]:
    context = chromium.new_context(reduced_motion="reduce")
    page = context.new_page()
    page.clock.install()
    page.goto(f"{paging.url}/explain")
    page.wait_for_selector("#caption:not(:empty)")
    yield page
    context.close()


def caption(page: Page) -> str:
    return page.inner_text("#caption")


def test_it_is_stepped_through_both_ways(page: Page) -> None:
    seen = [caption(page)]
    for _ in CAPTIONS[0][1:]:
        page.get_by_label("Step forward").click()
        seen.append(caption(page))
    assert seen == CAPTIONS[0]
    assert page.get_by_label("Step forward").is_disabled()

    back = [caption(page)]
    for _ in CAPTIONS[0][1:]:
        page.get_by_label("Step back").click()
        back.append(caption(page))
    assert back == CAPTIONS[0][::-1]


def test_it_shows_what_was_recorded(page: Page) -> None:
    page.keyboard.press("5")
    page.keyboard.press("Tab")  # out of the tabs, where arrows choose another scenario
    for frame in SCENES[4]["frames"]:
        assert page.inner_text("#record-state") == frame["record"]["state"]
        assert page.inner_text("#record-fence") == str(frame["record"]["fence"])
        assert page.inner_text("#charges") == str(len(frame["charges"]))
        assert page.locator(".server").count() == len(frame["servers"])
        told = [f"{event['server']}: {event['event']}" for event in frame["events"]]
        assert page.locator("#events .pill").all_inner_texts() == told
        page.keyboard.press("ArrowRight")


def test_keys_are_enough(page: Page) -> None:
    page.keyboard.press("ArrowRight")
    assert caption(page) == CAPTIONS[0][1]
    page.keyboard.press("End")
    assert caption(page) == CAPTIONS[0][-1]
    page.keyboard.press("ArrowLeft")
    assert caption(page) == CAPTIONS[0][-2]
    page.keyboard.press("Home")
    assert caption(page) == CAPTIONS[0][0]
    page.keyboard.press("3")
    assert caption(page) == CAPTIONS[2][0]
    page.keyboard.press("ArrowRight")  # among the tabs
    assert caption(page) == CAPTIONS[3][0]
    assert page.evaluate("document.activeElement.getAttribute('aria-selected')") == "true"
    for wanted in ("rewind", "toggle", "next", "last", "scrub", "tour"):
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == wanted
    page.keyboard.press("Enter")
    assert caption(page) == CAPTIONS[0][0]
    assert page.inner_text("#toggle") == "Stop"


def test_by_itself_it_takes_a_minute(page: Page) -> None:
    page.evaluate("""() => {
      globalThis.seen = [];
      const caption = document.querySelector("#caption");
      const note = () => seen.at(-1) === caption.textContent || seen.push(caption.textContent);
      new MutationObserver(note).observe(caption, { childList: true });
    }""")
    page.get_by_text("Play all in 60 s").click()
    page.clock.run_for(59_500)
    assert page.inner_text("#toggle") == "Stop"
    page.clock.run_for(600)

    assert page.inner_text("#toggle") == "Play"
    seen = page.evaluate("seen")
    assert [text for scene in CAPTIONS for text in scene] == [CAPTIONS[0][0], *seen][-34:]
    assert page.get_by_role("tab", selected=True).inner_text() == SCENES[-1]["title"]


def test_it_plays_backwards_by_itself(page: Page) -> None:
    page.keyboard.press("End")
    page.get_by_label("Play backwards").click()
    assert page.get_by_label("Play backwards").get_attribute("aria-pressed") == "true"
    page.clock.run_for(30_000)

    assert caption(page) == CAPTIONS[0][0]
    assert page.inner_text("#toggle") == "Play"


def test_captions_are_read_out_and_the_picture_is_not(page: Page) -> None:
    assert page.get_attribute("#caption", "aria-live") == "polite"
    assert page.get_attribute(".stage", "aria-hidden") == "true"
    assert "Step 1 of 6" in (page.get_attribute("#scrub", "aria-valuetext") or "")


def test_less_motion_is_less_motion(page: Page) -> None:
    assert page.evaluate("getComputedStyle(document.querySelector('#message')).animationName") == (
        "none"
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_in_light_and_dark(
    chromium: Browser, paging: PageServer, scheme: str
) -> None:
    context = chromium.new_context(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(f"{paging.url}/explain")
    page.wait_for_selector("#caption:not(:empty)")
    for number in "136":
        page.keyboard.press(number)
        assert not [found for found in contrasts(page) if found["ratio"] < 4.5]
    context.close()


@pytest.mark.parametrize("width", [320, 360, 768, 1280])
def test_nothing_sticks_out(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    for number in "123456":
        page.keyboard.press(number)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
