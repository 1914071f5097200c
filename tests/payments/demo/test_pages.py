"""The pages and their parts: who gets them, and nothing else of the folder."""

from __future__ import annotations

import pytest

from payments.demo.pages import FOLDER, names
from tests.payments.api_client import Api


@pytest.mark.parametrize("path", ["/", "/explain", "/oncekey.js", "/pages/base.css"])
def test_a_page_is_sent_once_and_then_asked_for(api: Api, path: str) -> None:
    first = api.client.get(path)
    again = api.client.get(path, headers={"If-None-Match": first.headers["etag"]})

    assert first.status_code == 200
    assert first.headers["cache-control"] == "no-cache"
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("name", ["__init__.py", "..%2fapp.py", "nothing.js", "", "%2e%2e/app.py"])
def test_only_what_is_meant_to_be_seen(api: Api, name: str) -> None:
    assert api.client.get(f"/pages/{name}").status_code == 404


def test_pages_load_nothing_from_elsewhere(api: Api) -> None:
    assert "default-src 'self'" in api.client.get("/").headers["content-security-policy"]
    for name in names():
        text = (FOLDER / name).read_text()
        outside = text.replace("http://www.w3.org/2000/svg", "")
        assert "://" not in outside, name
        assert "<script>" not in text, name
        assert " style=" not in text, name


def test_the_checkout_is_for_this_machine(api: Api) -> None:
    for path in ("/demo/watch", "/demo/tally", "/demo/faults"):
        assert api.client.get(path, headers={"Host": "shop.example"}).status_code == 403
    elsewhere = api.client.get("/", headers={"Host": "shop.example"}, follow_redirects=False)
    assert elsewhere.headers["location"] == "/explain"
