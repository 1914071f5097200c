"""Capture: what of an application's answer is collected."""

import pytest

from oncekey.web._capture import Capture


@pytest.mark.parametrize("status", [204, 304])
def test_e63_a_body_that_its_status_forbids_is_left_out(status: int) -> None:
    """Servers refuse to send it: its handler would fail, and each of its replays."""
    capture = Capture(10)
    capture.start(status, [(b"Content-Length", b"4")])
    assert not capture.add(b"null", last=False)
    assert capture.add(bytes(20), last=True)
    assert (capture.headers, capture.body, capture.take()) == ([], b"", b"")


@pytest.mark.parametrize(("size", "kept"), [(10, True), (11, False)])
def test_e59_a_body_is_kept_up_to_the_limit(size: int, kept: bool) -> None:
    capture = Capture(10)
    capture.start(200, [])
    assert capture.add(bytes(size), last=True)
    assert capture.body == (bytes(size) if kept else None)
    assert capture.take() == bytes(size)
