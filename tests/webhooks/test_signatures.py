"""Signatures, verified by the two libraries that receivers use."""

from __future__ import annotations

import base64
import doctest
import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
import standardwebhooks
import stripe
from hypothesis import given
from hypothesis import strategies as st

from oncekey._system.clock import SystemClock
from oncekey.errors import Misuse
from oncekey.webhooks import (
    Flaw,
    Genuine,
    Refused,
    Scheme,
    new_secret,
    signed_headers,
    verify,
)
from oncekey.webhooks import (
    _signatures as signature,
)

NOW = 1_700_000_000.0
ID = "evt_1"
BODY = b'{"id":"evt_1","object":"event","n":"\xc3\xa4"}'
OLD, NEW, OTHER = ("whsec_" + base64.b64encode(bytes([n]) * 24).decode() for n in (1, 2, 3))

schemes = pytest.mark.parametrize("scheme", Scheme)


def headers(*secrets: str, body: bytes = BODY, id: str = ID, now: float = NOW) -> dict[str, str]:
    return signed_headers(id, body, secrets or (OLD,), now)


def test_the_example_in_the_documentation() -> None:
    assert doctest.testmod(signature).failed == 0


# ----------------------------------------------------------------------------------- the judges


@pytest.mark.parametrize("held", [OLD, NEW])
def test_stripe_constructs_the_event(held: str) -> None:
    now = SystemClock.wall()
    line = headers(OLD, NEW, now=now)["Stripe-Signature"]
    assert stripe.Webhook.construct_event(BODY, line, held)["id"] == ID
    with pytest.raises(stripe.SignatureVerificationError):
        stripe.Webhook.construct_event(BODY, line, OTHER)


@pytest.mark.parametrize("held", [OLD, NEW])
def test_standard_webhooks_verifies(held: str) -> None:
    made = headers(OLD, NEW, now=SystemClock.wall())
    assert standardwebhooks.Webhook(held).verify(BODY, made) == json.loads(BODY)
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(OTHER).verify(BODY, made)


@given(st.binary(min_size=1, max_size=64), st.text(max_size=50), st.integers(0, 10**10))
def test_what_the_judges_sign_verifies(material: bytes, text: str, second: int) -> None:
    body, secret = text.encode("utf-8", "replace"), "whsec_" + base64.b64encode(material).decode()
    shown = body.decode()
    line = stripe.WebhookSignature.generate_signature_header(shown, secret, second)
    found = verify({"Stripe-Signature": line}, body, [secret], second, scheme=Scheme.STRIPE)
    assert found == Genuine(second, None)

    moment = datetime.fromtimestamp(second, tz=UTC)
    signed = standardwebhooks.Webhook(secret).sign("msg_1", moment, shown)
    lines = {
        "Webhook-Id": "msg_1",
        "Webhook-Timestamp": str(second),
        "Webhook-Signature": signed,
    }
    assert verify(lines, body, [secret], second) == Genuine(second, "msg_1")


def test_a_secret_without_padding_is_the_same_secret() -> None:
    padded = "whsec_" + base64.b64encode(b"x" * 25).decode()
    made = signed_headers(ID, BODY, [padded], NOW)
    assert verify(made, BODY, [padded.rstrip("=")], NOW) == Genuine(int(NOW), ID)


# ------------------------------------------------------------------------------------ tampering


@schemes
@given(st.data())
def test_a_changed_byte_of_the_body_is_refused(scheme: Scheme, data: st.DataObject) -> None:
    body = data.draw(st.binary(min_size=1, max_size=100))
    at, change = data.draw(st.integers(0, len(body) - 1)), data.draw(st.integers(1, 255))
    changed = body[:at] + bytes([body[at] ^ change]) + body[at + 1 :]
    made = headers(body=body)
    assert isinstance(verify(made, body, [OLD], NOW, scheme=scheme), Genuine)
    assert verify(made, changed, [OLD], NOW, scheme=scheme) == Refused(Flaw.FORGED)


SIGNED = {
    Scheme.STRIPE: ("Stripe-Signature",),
    Scheme.STANDARD: ("webhook-id", "webhook-timestamp", "webhook-signature"),
}


@schemes
@given(st.data())
def test_a_changed_character_of_a_header_is_refused(scheme: Scheme, data: st.DataObject) -> None:
    made = headers()
    name = data.draw(st.sampled_from(SIGNED[scheme]))
    line = made[name]
    at = data.draw(st.integers(0, len(line) - 1))
    other = data.draw(st.characters(min_codepoint=32, max_codepoint=255))
    made[name] = line[:at] + other + line[at + 1 :]
    found = verify(made, BODY, [OLD], NOW, scheme=scheme)
    if isinstance(found, Genuine):  # capitals of hex digits, or white space around a part
        assert made[name].lower().split() == line.lower().split()


@schemes
@given(st.dictionaries(st.sampled_from([n for s in SIGNED.values() for n in s]), st.text()))
def test_nonsense_is_refused_and_never_raises(scheme: Scheme, lines: dict[str, str]) -> None:
    found = verify(lines, BODY, [OLD], NOW, scheme=scheme)
    assert isinstance(found, Refused)


def test_an_id_cannot_swallow_a_part_of_the_body() -> None:
    """Id and timestamp are joined by full stops: no other way to part them is believed."""
    made = headers(id="msg", body=b"1700000001.{}")
    moved = made | {"webhook-id": f"msg.{int(NOW)}", "webhook-timestamp": "1700000001"}
    assert verify(moved, b"{}", [OLD], NOW) == Refused(Flaw.MALFORMED)
    with pytest.raises(Misuse, match="full stop"):
        signed_headers("msg.1", BODY, [OLD], NOW)


@pytest.mark.parametrize("id", ["", "two words", "line\r\nbreak", "ä", "x" * 256])
def test_ids_that_no_header_could_carry(id: str) -> None:
    with pytest.raises(Misuse):
        signed_headers(id, BODY, [OLD], NOW)


@schemes
def test_a_header_that_came_twice_is_refused(scheme: Scheme) -> None:
    made, name = headers(), SIGNED[scheme][-1]
    twice = made | {name.upper(): made[name]}
    assert verify(twice, BODY, [OLD], NOW, scheme=scheme) == Refused(Flaw.MALFORMED)


@schemes
def test_what_is_missing_is_said(scheme: Scheme) -> None:
    for name in SIGNED[scheme]:
        made = headers()
        del made[name]
        assert verify(made, BODY, [OLD], NOW, scheme=scheme) == Refused(Flaw.MISSING)


@schemes
def test_a_later_kind_of_signature_beside_ours_does_no_harm(scheme: Scheme) -> None:
    made = headers()
    made["Stripe-Signature"] += ",v2=xyz,v0=00"
    made["webhook-signature"] = "v1a,AAAA v1,%%% " + made["webhook-signature"]
    assert isinstance(verify(made, BODY, [OLD], NOW, scheme=scheme), Genuine)


# ------------------------------------------------------------------------ time, and new secrets


@schemes
@pytest.mark.parametrize(
    ("drift_s", "found"),
    [
        (300.0, Genuine(int(NOW), None)),
        (301.0, Refused(Flaw.TOO_OLD)),
        (-300.0, Genuine(int(NOW), None)),
        (-301.0, Refused(Flaw.TOO_NEW)),
    ],
)
def test_signed_lately(scheme: Scheme, drift_s: float, found: Genuine | Refused) -> None:
    seen = verify(headers(), BODY, [OLD], NOW + drift_s, scheme=scheme)
    if isinstance(seen, Genuine):
        seen = Genuine(seen.signed_at, None)
    assert seen == found


@schemes
def test_secrets_are_replaced_without_a_gap(scheme: Scheme) -> None:
    """Both ends go from the old to the new secret, in either order."""
    for signing, held in (([OLD], [OLD, NEW]), ([OLD, NEW], [OLD]), ([OLD, NEW], [NEW])):
        assert isinstance(verify(headers(*signing), BODY, held, NOW, scheme=scheme), Genuine)
    assert verify(headers(OLD), BODY, [NEW], NOW, scheme=scheme) == Refused(Flaw.FORGED)


@schemes
def test_p11_no_more_signatures_are_sent_than_are_read(scheme: Scheme) -> None:
    """Or whoever has the last secret could not verify."""
    held = [new_secret() for _ in range(signature.SIGNATURES_MAX)]
    assert isinstance(verify(headers(*held), BODY, held[-1:], NOW, scheme=scheme), Genuine)
    with pytest.raises(Misuse, match="sign with 1 to"):
        headers(*held, NEW)


def test_new_secrets_differ_and_fit_both_schemes() -> None:
    made = {new_secret() for _ in range(100)}
    assert len(made) == 100
    assert all(re.fullmatch(r"whsec_[A-Za-z0-9+/]{32}", secret) for secret in made)


@pytest.mark.parametrize("secret", ["", "whsec_", "whsec_%%%", "ä"])
def test_secrets_that_are_none(secret: str) -> None:
    with pytest.raises(Misuse):
        signed_headers(ID, BODY, [secret], NOW)


def test_no_secret_at_all() -> None:
    with pytest.raises(Misuse):
        signed_headers(ID, BODY, [], NOW)
    with pytest.raises(Misuse):
        verify(headers(), BODY, [], NOW)


@schemes
def test_a_secret_that_is_not_in_a_list_is_refused_and_not_taken_letter_by_letter(
    scheme: Scheme,
) -> None:
    guessed = signed_headers(ID, BODY, [OLD[0]], NOW, [Scheme.STRIPE])
    with pytest.raises(Misuse, match="secrets= is a list"):
        verify(guessed, BODY, OLD, NOW, scheme=scheme)
    with pytest.raises(Misuse, match="secrets= is a list"):
        signed_headers(ID, BODY, "whsec_short", NOW, [scheme])


@pytest.mark.parametrize("body", ["{}", {}, None])
def test_a_body_that_was_decoded_or_parsed_is_refused(body: Any) -> None:
    with pytest.raises(Misuse, match=r"the raw bytes: .*request\.get_data\(\)"):
        verify(headers(), body, [OLD], NOW)
    with pytest.raises(Misuse, match="the raw bytes"):
        signed_headers(ID, body, [OLD], NOW)
