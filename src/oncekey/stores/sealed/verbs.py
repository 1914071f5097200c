"""Seal verbs for the inner store, and open its outcomes. Pure.

How a sealed record is stored in the inner store:

    id             a keyed hash; the hashed id is accepted in place of the real one too
    tenant         a keyed hash, so that a tenant's records can be listed and purged
    key            an envelope: tenant, key and field digests. Blank once purged
    fingerprint    an envelope
    answer         its status, readable; headers, body and resource id in one envelope, as the body;
                   the engine's markers, under names that no header has, readable as well
    steps          the name a keyed hash; name and digest in one envelope, the result in another
    request        an envelope: the real id and the request

Each envelope is in the field that it hides, so that a purge blanks what it blanks anyway, no schema
changed, and no store knows that it is sealed. The fingerprint is an envelope and not a MAC that a
claim compares, so that a record found by its id is complete.

Envelopes are opened by a key derived from a secret and the *real* id, which is a digest of the
scope and the client's key and is stored nowhere: the secrets alone open no response. Two kinds of
content have a key of their own that needs only the secrets (*recovery*): requests that may have to
be finished without their client, and content written by a process that knows only the hashed id.
So a scan returns hashed ids, which contain a check of four bytes to be used like any id. Encrypting
ids reversibly would be simpler, but then the secrets alone would open every response.

The notice, which every process reads, is sealed by the id key in place of a secret: a process that
opens the store can open it, whichever secrets were in use when it was written.

State, operation, recovery, versions, fence, token and times stay readable. Changes of operation,
recovery, versions, and of the status and token of an answer, are detected.
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
from oncekey._core.values import value
from oncekey.errors import CorruptRecord
from oncekey.stores.sealed.envelope import EnvelopeHead, open_envelope, read_head, seal
from oncekey.stores.sealed.secrets import CLOSED, Secret, secret
from oncekey.stores.sql import decode_digests, encode_digests

IDS_REMEMBERED = 4_096
_HEAD_BYTES, _CHECK_BYTES = 28, 4
_CONTENT, _RECOVERY = b"c", b"r"
_IS_HASHED = re.compile(r"[0-9a-f]{32}").fullmatch

Headers = tuple[tuple[bytes, bytes], ...]


@value
class OpenedRequest:
    """The content of a request's envelope; the real id opens everything else of the record too."""

    id: bytes
    request: bytes


class Seal:
    """Seals and opens for one deployment: with its secrets, of which the first seals, and its id
    key.
    """

    def __init__(self, secrets: Sequence[Secret], id_key: bytes) -> None:
        self._current = secrets[0]
        self._lasting = secret(id_key.hex())
        self._secrets = {each.id: each for each in (*secrets, self._lasting)}
        self._id_key = id_key
        self._notice = self._hash_id(NOTICE_ID)
        self.hashed_id = lru_cache(IDS_REMEMBERED)(self._hash_id)
        self._key = lru_cache(IDS_REMEMBERED)(self._derive_key)

    # -------------------------------------------------------------------------- keyed hashes

    def _hash(self, *parts: bytes) -> bytes:
        return hmac.digest(self._id_key, frame(parts), "sha256")

    def _hash_id(self, record_id: bytes) -> bytes:
        """Return the id in the inner store. A hashed id stays as it is, so that ids from a scan can
        be used like any other.
        """
        if record_id[_HEAD_BYTES:] == self._check(record_id[:_HEAD_BYTES]):
            return record_id
        head = self._hash(b"id", record_id)[:_HEAD_BYTES]
        return head + self._check(head)

    def is_sealed(self, record_id: bytes) -> bool:
        """Return whether this is a hashed id. A real id that looks like one by chance, one in four
        thousand million, is merely not hidden.
        """
        return self.hashed_id(record_id) == record_id

    def _check(self, head: bytes) -> bytes:
        return self._hash(b"check", head)[:_CHECK_BYTES]

    def hashed_tenant(self, tenant: str) -> str:
        return self._hash(b"tenant", as_bytes(tenant))[:16].hex()

    def hashed_step_name(self, record_id: bytes, name: str) -> str:
        """Hash the name; the hash is the same under every secret, because a step may begin under
        one and end under another.
        """
        return self._hash(b"step", self.hashed_id(record_id), as_bytes(name))[:16].hex()

    # ----------------------------------------------------------------------------- envelopes

    def _derive_key(self, secret: Secret, opened_by: bytes, owner: bytes) -> bytes:
        master = secret.content if opened_by == _CONTENT else secret.recovery
        return hmac.digest(master, owner, "sha256")

    def _seal(self, record_id: bytes, content: bytes, purpose: bytes, *bound: bytes) -> bytes:
        """Seal with the content key if the real id is known, else with the recovery key."""
        opened_by = _RECOVERY if self.is_sealed(record_id) else _CONTENT
        return self._seal_by(opened_by, record_id, content, purpose, *bound)

    def _seal_by(
        self, opened_by: bytes, record_id: bytes, content: bytes, purpose: bytes, *bound: bytes
    ) -> bytes:
        sealed_id = self.hashed_id(record_id)
        secret = self._lasting if sealed_id == self._notice else self._current
        owner = record_id if opened_by == _CONTENT else sealed_id
        head = EnvelopeHead(opened_by, secret.id)
        key = self._key(secret, opened_by, owner)
        return seal(key, head, content, frame((purpose, sealed_id, *bound)))

    def _open(
        self, record_id: bytes, envelope: bytes, purpose: bytes, *bound: bytes
    ) -> bytes | None:
        """Return the content; None if it needs the client's key and only a hashed id is known."""
        head, sealed_id = read_head(envelope), self.hashed_id(record_id)
        if head.opened_by == _CONTENT and record_id == sealed_id:
            return None  # even without its secret, so that a list can show it
        secret = self._secrets.get(head.secret_id)
        if secret is None:
            raise CorruptRecord(
                f"a record is sealed by the secret {head.secret_id.hex()}, which this process does "
                "not have: add it to its secrets, after the first"
            )
        owner = record_id if head.opened_by == _CONTENT else sealed_id
        key = self._key(secret, head.opened_by, owner)
        return open_envelope(key, envelope, frame((purpose, sealed_id, *bound)))

    # -------------------------------------------------------------------------------- claims

    def seal_claim(self, claim: Claim) -> Claim:
        """Return the claim as it is stored."""
        record_id, bound = claim.id, _claim_binding(claim)
        digests = encode_digests(claim.field_digests)
        fields = None if digests is None else digests.encode()
        content = pack(as_bytes(claim.tenant), as_bytes(claim.key), fields)
        request = claim.request
        if request is not None:
            request = self._seal_by(_RECOVERY, record_id, pack(record_id, request), b"request")
        return replace(
            claim,
            id=self.hashed_id(record_id),
            tenant=self._stored_tenant(claim),
            key=_as_text(self._seal(record_id, content, b"claim", *bound)) if claim.key else "",
            fingerprint=self._seal(record_id, claim.fingerprint, b"fingerprint", *bound),
            field_digests={},
            request=request,
        )

    def _stored_tenant(self, claim: Claim) -> str:
        """Return the hashed tenant. A process that knows only the hashed id passes a hashed tenant
        already.
        """
        handed_back = self.is_sealed(claim.id) and _IS_HASHED(claim.tenant)
        return claim.tenant if handed_back else self.hashed_tenant(claim.tenant)

    def open_request(self, record_id: bytes, envelope: bytes) -> OpenedRequest:
        """Open a request's envelope."""
        content = self._open(record_id, envelope, b"request")
        if content is None:
            raise CorruptRecord("a kept request is sealed by the wrong kind of key")
        real_id, request = unpack(content, 2)
        if (
            real_id is None
            or request is None
            or self.hashed_id(real_id) != self.hashed_id(record_id)
        ):
            raise CorruptRecord("a kept request belongs to another record")
        return OpenedRequest(real_id, request)

    # ------------------------------------------------------------------------------- records

    def open_record(self, found: Record, record_id: bytes, tenant: str | None = None) -> Record:
        """Return the record as a caller with this id may see it. `tenant` is its tenant, if known:
        a purge removes the name too.
        """
        if found.id != self.hashed_id(record_id):
            raise CorruptRecord("the store returned another record than it was asked for")
        bound = _claim_binding(found)
        fingerprint = self._open(record_id, found.fingerprint, b"fingerprint", *bound)
        content = None
        if found.key:
            content = self._open(record_id, _as_bytes(found.key), b"claim", *bound)
        answer, resource_id = self._open_answer(found, record_id)
        tenant, key, digests = self._read_claim(found, content, tenant)
        return replace(
            found,
            id=record_id,
            tenant=tenant,
            key=key,
            fingerprint=found.fingerprint if fingerprint is None else fingerprint,
            field_digests=decode_digests(digests),
            answer=answer,
            resource_id=resource_id,
        )

    def _read_claim(
        self, found: Record, content: bytes | None, tenant: str | None
    ) -> tuple[str, str, str | None]:
        """Return tenant, key and field digests."""
        if content is None:
            return tenant or found.tenant, CLOSED if found.key else "", None
        opened, key, digests = unpack(content, 3)
        real_tenant = _text(opened)
        if found.tenant not in (self.hashed_tenant(real_tenant), real_tenant):
            raise CorruptRecord("a sealed record is stored under another tenant than its own")
        return real_tenant, _text(key), None if digests is None else digests.decode()

    # ------------------------------------------------------------------------------- answers

    def seal_answer(
        self, record_id: bytes, answer: Answer, resource_id: str | None, token: bytes
    ) -> Answer:
        """Return the answer as it is stored; `token` is that of the attempt that produced it."""
        resource = None if resource_id is None else as_bytes(resource_id)
        content = pack(encode_headers(answer.headers), answer.body, resource)
        markers = tuple(line for line in answer.headers if _is_marker(line))
        envelope = self._seal(
            record_id, content, b"answer", *_answer_binding(answer.status, markers, token)
        )
        return Answer(answer.status, markers, envelope)

    def _open_answer(self, found: Record, record_id: bytes) -> tuple[Answer | None, str | None]:
        stored = found.answer
        if found.resource_id is not None or (stored and not all(map(_is_marker, stored.headers))):
            raise CorruptRecord("a sealed record has an answer that is not sealed")
        if stored is None or stored.body is None:  # none yet, purged, or left out by a scan
            return stored, None
        binding = _answer_binding(stored.status, stored.headers, found.token)
        content = self._open(record_id, stored.body, b"answer", *binding)
        if content is None:
            return Answer(stored.status, stored.headers, None), None
        headers, body, resource = unpack(content, 3)
        answer = Answer(stored.status, decode_headers(headers or b""), body)
        return answer, None if resource is None else _text(resource)

    # --------------------------------------------------------------------------------- steps

    def seal_step(self, record_id: bytes, step: Step) -> Step:
        """Return the step as it is stored."""
        name = self.hashed_step_name(record_id, step.name)
        bound, content = name.encode(), pack(as_bytes(step.name), step.digest)
        result = step.result
        if result is not None:
            result = self._seal(record_id, result, b"result", bound)
        return Step(name, self._seal(record_id, content, b"step", bound), result)

    def open_step(self, record_id: bytes, stored: Step) -> Step:
        bound, result = stored.name.encode(), stored.result
        content = self._open(record_id, stored.digest, b"step", bound)
        if content is None:
            return Step(CLOSED, stored.digest, None if result is None else b"")
        name, digest = unpack(content, 2)
        if result is not None:
            result = self._open(record_id, result, b"result", bound)
        return Step(_text(name), digest or b"", result)


def is_resumable(record: Record) -> bool:
    """Return whether a process that does not know its key may have to finish the record."""
    return record.state is State.RUNNING and record.recovery != "rerun"


def _claim_binding(of: Claim | Record) -> tuple[bytes, ...]:
    """Return what a claim's envelopes are bound to: everything of it that stays readable."""
    versions = b"%d %d" % (of.fingerprint_version, of.schema_version)
    return as_bytes(of.operation), as_bytes(of.recovery), versions


def _answer_binding(status: int, markers: Headers, token: bytes) -> tuple[bytes, ...]:
    """Return what an answer's envelope is bound to."""
    return b"%d" % status, encode_headers(markers), token


def _is_marker(line: tuple[bytes, bytes]) -> bool:
    """Return whether this is not a header but says how the answer is stored: cleanup must see
    it.
    """
    return line[0].startswith(b":")


def _as_text(envelope: bytes) -> str:
    return base64.b64encode(envelope).decode("ascii")


def _as_bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise CorruptRecord("a sealed record's key is not an envelope") from error


def _text(part: bytes | None) -> str:
    return (part or b"").decode("utf-8", "surrogatepass")
