"""The module as a file: where it is, and what to say about it."""

import hashlib

from oncekey.client import browser


def test_it_can_be_served_by_anything() -> None:
    file = browser.module()

    assert file.body == browser.path().read_bytes()
    assert file.etag == f'"{hashlib.sha256(file.body).hexdigest()[:32]}"'
    assert file.headers["ETag"] == file.etag
    assert file.headers["Content-Type"] == "text/javascript; charset=utf-8"


def test_it_depends_on_nothing() -> None:
    lines = browser.path().read_text().splitlines()

    assert not [line for line in lines if line.startswith("import ") or "require(" in line]
