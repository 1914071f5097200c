"""The seal: verbs as a sealed store keeps them, and what it returns as those see it who may. Pure.

What stands where, in the record that the store below is asked to keep:

    id             a keyed hash; who presents it instead of the real id is understood as well
    tenant         a keyed hash, so that a tenant's records can be listed and purged
    key            an envelope: tenant, key and field digests. Blank once purged, as ever
    fingerprint    an envelope
    answer         its status, readable; headers, body and resource id in one envelope, as the body;
                   what the engine marks it with, under names that no header has, readable as well
    steps          the name a keyed hash; name and digest in one envelope, the result in another
    request        an envelope: the real id and the request

Envelopes are opened by a key derived from a secret and the *real* id, which is a digest of the
scope and the client's key and stands nowhere: the secrets alone open no answer. Only the request of
what may have to be finished without its client, and what was written by somebody who knows no more
than the hashed id, are opened by a key of their own that needs the secrets alone (*recovery*).

The notice, at which every process looks, is sealed by the id key in place of a secret: who opens
the store opens it, whichever secrets were in use when it was written.

State, operation, recovery, versions, fence, token and times stay readable; operation, recovery and
versions cannot be changed unnoticed, nor the status and the token of an answer.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from oncekey._core.framing import as_bytes, frame, pack, unpack
from oncekey._core.notice import NOTICE_ID
from oncekey._core.record import Answer, Claim, Record, State, Step, decode_headers, encode_headers
from oncekey._core.secrets import CLOSED, Secret, secret
from oncekey._core.values import value
from oncekey.errors import CorruptRecord
from oncekey.stores.sealed.envelope import Head, open_envelope, read_head, seal
from oncekey.stores.sql import decode_digests, encode_digests

IDS_REMEMBERED = 4_096
_HEAD_BYTES, _CHECK_BYTES = 28, 4
_CONTENT, _RECOVERY = b"c", b"r"
_IS_HASHED = re.compile(r"[0-9a-f]{32}").fullmatch

Headers = tuple[tuple[bytes, bytes], ...]


@value
class Kept:
    """What the request's envelope holds: by the real id everything else of the record opens too."""

    id: bytes
    request: bytes


class Seal:
    """Seals and opens for one deployment: its secrets, the one that seals first, and its id key."""

    def __init__(self, secrets: Sequence[Secret], id_key: bytes) -> None:
        self._current = secrets[0]
        self._lasting = secret(id_key.hex())
        self._secrets = {each.id: each for each in (*secrets, self._lasting)}
        self._id_key = id_key
        self._notice = self._id(NOTICE_ID)
        self.id = lru_cache(IDS_REMEMBERED)(self._id)
        self._key = lru_cache(IDS_REMEMBERED)(self._derived)

    # -------------------------------------------------------------------------- keyed hashes

    def _hash(self, *parts: bytes) -> bytes:
        return hmac.digest(self._id_key, frame(parts), "sha256")

    def _id(self, given: bytes) -> bytes:
        """The id in the store below. One that has been through here stays as it is, so that ids
        which a scan shows can be used like any other.
        """
        if given[_HEAD_BYTES:] == self._check(given[:_HEAD_BYTES]):
            return given
        head = self._hash(b"id", given)[:_HEAD_BYTES]
        return head + self._check(head)

    def is_sealed(self, given: bytes) -> bool:
        """Whether it is a hashed id. A real one that looks like it by chance, one in four thousand
        million, is merely not hidden.
        """
        return self.id(given) == given

    def _check(self, head: bytes) -> bytes:
        return self._hash(b"check", head)[:_CHECK_BYTES]

    def tenant(self, tenant: str) -> str:
        return self._hash(b"tenant", as_bytes(tenant))[:16].hex()

    def step_name(self, given: bytes, name: str) -> str:
        """The same under every secret: a step may be begun under one and ended under another."""
        return self._hash(b"step", self.id(given), as_bytes(name))[:16].hex()

    # ----------------------------------------------------------------------------- envelopes

    def _derived(self, secret: Secret, opened_by: bytes, record_id: bytes) -> bytes:
        master = secret.content if opened_by == _CONTENT else secret.recovery
        return hmac.digest(master, record_id, "sha256")

    def _seal(self, given: bytes, content: bytes, what: bytes, *bound: bytes) -> bytes:
        """By the key of the content where the real id is known, else by that of recovery."""
        opened_by = _RECOVERY if self.is_sealed(given) else _CONTENT
        return self._seal_by(opened_by, given, content, what, *bound)

    def _seal_by(
        self, opened_by: bytes, given: bytes, content: bytes, what: bytes, *bound: bytes
    ) -> bytes:
        sealed_id = self.id(given)
        secret = self._lasting if sealed_id == self._notice else self._current
        owner = given if opened_by == _CONTENT else sealed_id
        head = Head(opened_by, secret.id)
        key = self._key(secret, opened_by, owner)
        return seal(key, head, content, frame((what, sealed_id, *bound)))

    def _open(self, given: bytes, envelope: bytes, what: bytes, *bound: bytes) -> bytes | None:
        """The content; None where it takes the client's key, and only a hashed id is known."""
        head, sealed_id = read_head(envelope), self.id(given)
        if head.opened_by == _CONTENT and given == sealed_id:
            return None  # also where its secret is gone: one such record hides no others in a list
        secret = self._secrets.get(head.secret_id)
        if secret is None:
            raise CorruptRecord(
                f"a record is sealed by the secret {head.secret_id.hex()}, which this process was "
                "not given: add it to its secrets, behind the first"
            )
        owner = given if head.opened_by == _CONTENT else sealed_id
        key = self._key(secret, head.opened_by, owner)
        return open_envelope(key, envelope, frame((what, sealed_id, *bound)))

    # -------------------------------------------------------------------------------- claims

    def claim(self, claim: Claim) -> Claim:
        """The claim as it is kept."""
        given, bound = claim.id, _rules(claim)
        digests = encode_digests(claim.field_digests)
        fields = None if digests is None else digests.encode()
        named = pack(as_bytes(claim.tenant), as_bytes(claim.key), fields)
        request = claim.request
        if request is not None:
            request = self._seal_by(_RECOVERY, given, pack(given, request), b"request")
        return replace(
            claim,
            id=self.id(given),
            tenant=self._kept_tenant(claim),
            key=_as_text(self._seal(given, named, b"claim", *bound)) if claim.key else "",
            fingerprint=self._seal(given, claim.fingerprint, b"fingerprint", *bound),
            field_digests={},
            request=request,
        )

    def _kept_tenant(self, claim: Claim) -> str:
        """Who has only the hashed id has only the hashed name, and hands that back."""
        handed_back = self.is_sealed(claim.id) and _IS_HASHED(claim.tenant)
        return claim.tenant if handed_back else self.tenant(claim.tenant)

    def requested(self, given: bytes, envelope: bytes) -> Kept:
        """What the request's envelope says."""
        whole = self._open(given, envelope, b"request")
        if whole is None:
            raise CorruptRecord("a kept request is sealed by a key that it cannot be sealed by")
        record_id, request = unpack(whole, 2)
        if record_id is None or request is None or self.id(record_id) != self.id(given):
            raise CorruptRecord("a kept request belongs to another record")
        return Kept(record_id, request)

    # ------------------------------------------------------------------------------- records

    def record(self, found: Record, given: bytes, tenant: str | None = None) -> Record:
        """The record as whoever presents this id may see it; `tenant` is whose it is, where that is
        known: a purge takes the name too.
        """
        if found.id != self.id(given):
            raise CorruptRecord("the store returned another record than it was asked for")
        bound = _rules(found)
        fingerprint = self._open(given, found.fingerprint, b"fingerprint", *bound)
        named = None
        if found.key:
            named = self._open(given, _as_bytes(found.key), b"claim", *bound)
        answer, resource_id = self._answer(found, given)
        tenant, key, digests = self._named(found, named, tenant)
        return replace(
            found,
            id=given,
            tenant=tenant,
            key=key,
            fingerprint=found.fingerprint if fingerprint is None else fingerprint,
            field_digests=decode_digests(digests),
            answer=answer,
            resource_id=resource_id,
        )

    def _named(
        self, found: Record, named: bytes | None, tenant: str | None
    ) -> tuple[str, str, str | None]:
        """Tenant, key and field digests."""
        if named is None:
            return tenant or found.tenant, CLOSED if found.key else "", None
        opened, key, digests = unpack(named, 3)
        account = _text(opened)
        if found.tenant not in (self.tenant(account), account):
            raise CorruptRecord("a sealed record stands under another tenant than its own")
        return account, _text(key), None if digests is None else digests.decode()

    # ------------------------------------------------------------------------------- answers

    def answer(self, given: bytes, answer: Answer, resource_id: str | None, token: bytes) -> Answer:
        """The answer as it is kept; `token` is that of the attempt which gave it."""
        resource = None if resource_id is None else as_bytes(resource_id)
        content = pack(encode_headers(answer.headers), answer.body, resource)
        marks = tuple(line for line in answer.headers if _is_mark(line))
        envelope = self._seal(given, content, b"answer", *_said(answer.status, marks, token))
        return Answer(answer.status, marks, envelope)

    def _answer(self, found: Record, given: bytes) -> tuple[Answer | None, str | None]:
        kept = found.answer
        if found.resource_id is not None or (kept and not all(map(_is_mark, kept.headers))):
            raise CorruptRecord("a sealed record has an answer that is not sealed")
        if kept is None or kept.body is None:  # none yet, purged, or left out by a scan
            return kept, None
        said = _said(kept.status, kept.headers, found.token)
        content = self._open(given, kept.body, b"answer", *said)
        if content is None:
            return Answer(kept.status, kept.headers, None), None
        headers, body, resource = unpack(content, 3)
        answer = Answer(kept.status, decode_headers(headers or b""), body)
        return answer, None if resource is None else _text(resource)

    # --------------------------------------------------------------------------------- steps

    def step(self, given: bytes, step: Step) -> Step:
        """The step as it is kept."""
        name = self.step_name(given, step.name)
        bound, content = name.encode(), pack(as_bytes(step.name), step.digest)
        result = step.result
        if result is not None:
            result = self._seal(given, result, b"result", bound)
        return Step(name, self._seal(given, content, b"step", bound), result)

    def opened_step(self, given: bytes, kept: Step) -> Step:
        bound, result = kept.name.encode(), kept.result
        content = self._open(given, kept.digest, b"step", bound)
        if content is None:
            return Step(CLOSED, kept.digest, None if result is None else b"")
        name, digest = unpack(content, 2)
        if result is not None:
            result = self._open(given, result, b"result", bound)
        return Step(_text(name), digest or b"", result)


def resumable(record: Record) -> bool:
    """Whether somebody may have to go on with it who does not know its key."""
    return record.state is State.RUNNING and record.recovery != "rerun"


def _rules(of: Claim | Record) -> tuple[bytes, ...]:
    """What a claim's envelopes are bound to: all that it brings and that stays readable."""
    versions = b"%d %d" % (of.fingerprint_version, of.schema_version)
    return as_bytes(of.operation), as_bytes(of.recovery), versions


def _said(status: int, marks: Headers, token: bytes) -> tuple[bytes, ...]:
    """What an answer's envelope is bound to."""
    return b"%d" % status, encode_headers(marks), token


def _is_mark(line: tuple[bytes, bytes]) -> bool:
    """Whether it is no header, but says how the answer is kept: who tidies up must see it."""
    return line[0].startswith(b":")


def _as_text(envelope: bytes) -> str:
    return base64.b64encode(envelope).decode("ascii")


def _as_bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise CorruptRecord("a sealed record's key is no envelope") from error


def _text(part: bytes | None) -> str:
    return (part or b"").decode("utf-8", "surrogatepass")
