"""Uploads, in every form (E25): taken up to a limit, handed on as they were, and compared."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from oncekey import Policy
from oncekey.web import _body as bodies
from oncekey.web import _spool as spools
from oncekey.web._body import Body, room
from oncekey.web._edge import TOLD_MAX
from oncekey.web._spool import spool
from tests.web.uploads import FORMS, Form, form_of, seen

MIB = 1_048_576
PHOTO = bytes(range(256)) * (3 * MIB // 256)


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> Iterator[Form]:
    with form_of(request.param, Policy()) as form:
        yield form


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    assert (room.bytes_held, spool.bytes_used) == (0, 0)


def multipart(content: bytes, boundary: str) -> tuple[bytes, str]:
    head = b'Content-Disposition: form-data; name="photo"; filename="a"\r\n\r\n'
    edge = b"--" + boundary.encode()
    body = edge + b"\r\n" + head + content + b"\r\n" + edge + b"--\r\n"
    return body, f"multipart/form-data; boundary={boundary}"


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, MIB, MIB + 1, 2 * MIB, 3 * MIB + 17])
def test_e25_a_body_of_any_size_comes_as_it_was_sent(form: Form, size: int) -> None:
    body = (PHOTO * 2)[:size]
    first = form.ask("k1", body, "application/octet-stream")
    assert (first.status, first.json()) == (201, seen(body))
    again = form.ask("k1", body, "application/octet-stream")
    assert (again.status, again.body, again.replayed) == (201, first.body, True)


def test_e25_an_upload_of_ten_mebibytes_is_taken_by_default(form: Form) -> None:
    body = b"x" * (10 * MIB)
    assert form.ask("k1", body, "application/octet-stream").json() == seen(body)
    refused = form.ask("k2", body + b"x", "application/octet-stream")
    assert (refused.status, refused.kind) == (413, "request-too-large")
    assert "request_bytes_max" in refused.json()["detail"]


def test_e22_a_large_multipart_form_is_compared_by_part(form: Form) -> None:
    assert form.ask("k1", *multipart(PHOTO, "b-one")).status == 201
    assert form.ask("k1", *multipart(PHOTO, "b-other")).replayed
    changed = form.ask("k1", *multipart(PHOTO[:-1] + b"x", "b-one"))
    assert (changed.status, changed.kind) == (422, "mismatch")


@pytest.mark.parametrize("form", ["asgi"], indirect=True)
def test_e22_a_large_form_that_is_said_to_have_no_coding_is_compared_by_part(form: Form) -> None:
    plain = [(b"content-encoding", b"Identity")]
    assert form.ask("k1", *multipart(PHOTO, "b-one"), headers=plain).status == 201
    assert form.ask("k1", *multipart(PHOTO, "b-other"), headers=plain).replayed
    assert form.ask("k1", *multipart(PHOTO, "b-other")).replayed


@pytest.mark.parametrize("mib", [0.5, 2])
def test_e20_e25_json_is_compared_by_value_up_to_a_mebibyte(form: Form, mib: float) -> None:
    told = {"a": 1, "b": "x" * int(mib * MIB)}
    order = json.dumps(told).encode()
    anew = json.dumps({"b": told["b"], "a": 1.0}, indent=1).encode()
    assert form.ask("k1", order, "application/json").status == 201
    assert form.ask("k1", order, "application/json").replayed
    written_anew = form.ask("k1", anew, "application/json")
    assert written_anew.replayed if mib < 1 else written_anew.kind == "mismatch"


@pytest.mark.parametrize("form", ["asgi"], indirect=True)
def test_p11_what_is_decompressed_has_a_limit_of_its_own(form: Form) -> None:
    """Beyond it the compressed bytes count. No other form's client can send the header."""
    coded = [(b"content-encoding", b"gzip")]
    for size, compared in ((MIB - 100, True), (2 * MIB, False)):
        key, order = f"k{size}", b'{"a":"' + b"x" * size + b'"}'
        told = [gzip.compress(order, level, mtime=0) for level in (9, 1)]
        first = form.ask(key, told[0], "application/json", headers=coded)
        assert first.json() == seen(told[0])
        assert form.ask(key, told[0], "application/json", headers=coded).replayed
        assert form.ask(key, told[1], "application/json", headers=coded).replayed is compared


@contextlib.contextmanager
def others_hold(size: int) -> Iterator[None]:
    """While bodies of other requests take so many bytes."""
    assert room.take(size, size)
    try:
        yield
    finally:
        room.give_back(size)


def test_p11_a_process_holds_no_more_bodies_than_it_may(caplog: pytest.LogCaptureFixture) -> None:
    policy = Policy(request_bytes_max=2 * MIB, bodies_bytes_max=2 * MIB)
    for name in FORMS:
        with form_of(name, policy) as form, others_hold(MIB):
            caplog.clear()
            refused = form.ask("k1", PHOTO[: 2 * MIB], "application/octet-stream")
            assert (refused.status, refused.kind, name) == (503, "no-room", name)
            assert refused.header("retry-after") == "2"
            assert "bodies_bytes_max=2097152" in refused.json()["detail"]
            assert "bodies_bytes_max=2097152" in caplog.text
            assert form.ask("k1", PHOTO[:MIB], "application/octet-stream").status == 201


def test_p11_short_bodies_are_not_counted() -> None:
    for name in FORMS:
        with form_of(name, Policy()) as form, others_hold(Policy().settled().bodies_bytes_max):
            assert form.ask("k1", PHOTO[:65_536], "application/octet-stream").status == 201
            assert form.ask("k2", PHOTO[:65_537], "application/octet-stream").kind == "no-room"


def test_p11_the_log_names_the_setting_once(caplog: pytest.LogCaptureFixture) -> None:
    with form_of("wsgi", Policy(request_bytes_max=10)) as form:
        for _ in range(3):
            assert form.ask("k1", b"x" * 11, "text/plain").kind == "request-too-large"
    told = [record for record in caplog.records if "request_bytes_max" in record.getMessage()]
    assert [record.levelname for record in told] == ["WARNING"]


def test_p11_a_tenant_function_that_fails_keeps_no_body() -> None:
    def broken(request: Any) -> str:
        raise ConnectionError("the accounts are away")

    kept = []
    for name in FORMS:
        with form_of(name, Policy(), tenant=broken) as form:
            try:
                assert form.ask("k1", PHOTO, "application/octet-stream").status == 500
            except ConnectionError as error:  # as error trackers keep it
                kept.append(error)
            assert (room.bytes_held, spool.bytes_used, name) == (0, 0, name)
    assert kept


def test_p11_paths_that_are_made_up_do_not_silence_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    routes = {"POST /orders": Policy(request_bytes_max=10)}
    with form_of("asgi", Policy(request_bytes_max=10), routes=routes) as form:
        for n in range(TOLD_MAX + 1):
            form.ask("k1", b"x" * 11, "text/plain", path=f"/{n}")
        caplog.clear()
        for path in ("/orders", "/orders", "/more"):
            assert form.ask("k1", b"x" * 11, "text/plain", path=path).status == 413
    assert [each.getMessage().partition(":")[0] for each in caplog.records] == ["POST /orders"]


def test_p11_no_room_on_the_disk_is_told_apart(form: Form, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.pwrite", full)
        refused = form.ask("k1", PHOTO, "application/octet-stream")
        assert (refused.status, refused.kind) == (503, "no-room")
        assert "No space left on device" in refused.json()["detail"]
    assert form.ask("k1", PHOTO, "application/octet-stream").status == 201


def test_p11_where_no_temporary_file_can_be_made_short_bodies_are_taken(
    form: Form, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container whose file system is read-only. What waits then stays in memory."""

    def nowhere(*_: Any, **__: Any) -> None:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    short = Body(PHOTO[:100_000])
    with monkeypatch.context() as patched:
        patched.setattr(spool, "_file", None)
        folder = SimpleNamespace(TemporaryFile=nowhere, gettempdir=nowhere)
        for module in (spools, bodies):
            patched.setattr(module, "tempfile", folder, raising=False)
        refused = form.ask("k1", PHOTO, "application/octet-stream")
        assert (refused.status, refused.kind) == (503, "no-room")
        assert "TMPDIR: No usable temporary directory" in refused.json()["detail"]
        assert form.ask("k2", PHOTO[:100_000], "application/octet-stream").status == 201
        short.put_away()
    assert short.content() == PHOTO[:100_000]
