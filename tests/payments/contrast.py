"""What can be measured of how a page looks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Page


def contrasts(page: Page) -> list[dict[str, Any]]:
    """Every text that can be seen, with the contrast to what is behind it (WCAG 2).

    Left out is what is meant to step back: controls that are switched off, and what is faded.
    """
    found: list[dict[str, Any]] = page.evaluate(_CONTRASTS)
    assert found
    return found


_CONTRASTS = """() => {
  const parts = (color) => color.match(/[\\d.]+/g).map(Number);
  const linear = (c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) =>
    0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = parts(getComputedStyle(at).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const faded = (element) => {
    for (let at = element; at; at = at.parentElement) {
      if (Number(getComputedStyle(at).opacity) < 1) return true;
    }
    return element.closest(":disabled") !== null;
  };
  const own = (element) =>
    [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  return [...document.body.querySelectorAll("*")]
    .filter((element) => own(element) && element.checkVisibility() && !faded(element))
    .map((element) => {
      const [one, other] = [
        light(parts(getComputedStyle(element).color)),
        light(behind(element)),
      ].sort((a, b) => b - a);
      const text = element.textContent.trim().slice(0, 40);
      return { text, ratio: (one + 0.05) / (other + 0.05) };
    });
}"""
