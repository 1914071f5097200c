"""Content: replays are byte for byte what was stored, and no two texts are confused."""

from __future__ import annotations

from http import HTTPStatus

from oncekey._core.record import Answer, State
from oncekey._core.verbs import Find, Purge, Scan
from oncekey.testing.contract.subject import Case, Contract

EVERY_BYTE = bytes(range(256))
VISIBLE = "".join(map(chr, range(0x21, 0x7F)))
MIB = 1_048_576

BODIES = {
    "every byte": EVERY_BYTE,
    "every byte, often": EVERY_BYTE * 64,
    "empty": b"",
    "left out": None,
    "one NUL": b"\x00",
    "looks like JSON": b'{"items":[],"id":12345678901234567,"x":1.10}',
    "looks like base64": b"AAECAw==",
    "not UTF-8": b"\xff\xfe\xed\xa0\x80",
    "line ends": b"a\r\nb\nc\r",
    "1 MiB": EVERY_BYTE * (MIB // 256),
}

HEADERS = {
    "none": (),
    "repeated lines": ((b"link", b"</1>"), (b"x", b"1"), (b"link", b"</2>"), (b"link", b"</1>")),
    "every latin-1 byte": ((b"x-name", bytes(range(0x20, 0x7F)) + bytes(range(0x80, 0x100))),),
    "case and order": ((b"X-B", b"1"), (b"x-a", b"2"), (b"X-A", b"3")),
    "empty values and spaces": ((b"x-empty", b""), (b"x-space", b"  two  ")),
    "separators": ((b"x", b'a: b, c; d="e\\"f"'), (b"y", b"a=b&c=d|e:f")),
    "many": tuple((b"x-%d" % number, b"v" * number) for number in range(200)),
}

TENANTS = [
    "acct_1",
    VISIBLE,
    "it's",
    'say "hi"',
    "back\\slash",
    "semi;colon -- comment",
    "'; DROP TABLE oncekey_records; --",
    "Robert'); DELETE FROM records WHERE ('1'='1",
    "100%_wild*[a-z]?{}",
    "colon:slash/hash#at@",
    "$1 ? :name %s {0}",
    "Zürich-東京-🗝",
    "e\u0301",  # a combining accent: not the letter é
    " leading",
    "trailing ",
    "tab\tand\nnewline",
    "x" * 1000,
]

LOOK_ALIKES = [
    ("key", "order-a", "order-A"),
    ("tenant", "acct", "ACCT"),
    ("tenant", "acct", "acct "),
    ("tenant", "acct", " acct"),
    ("tenant", "\u00e9", "e\u0301"),
    ("tenant", "stra\u00dfe", "strasse"),
    ("tenant", "a", "a\u200b"),
]


class ContentContract(Contract):
    def test_bodies_are_kept_byte_for_byte(self, case: Case) -> None:
        for what, body in BODIES.items():
            kept = case.done(case.complete(case.begin(), Answer(200, (), body))).answer
            # Compare outside the assertion: showing where two long bodies differ can take minutes.
            unchanged = kept is not None and kept.body == body
            assert unchanged, what

    def test_header_lines_are_kept_as_lines(self, case: Case) -> None:
        for what, headers in HEADERS.items():
            answer = Answer(200, headers, b"x")
            assert case.done(case.complete(case.begin(), answer)).answer == answer, what

    def test_statuses_are_kept(self, case: Case) -> None:
        for status in (100, 200, 204, 302, 404, 500, 599, HTTPStatus.CREATED):
            answer = Answer(status, (), b"")
            assert case.done(case.complete(case.begin(), answer)).answer == answer

    def test_texts_are_kept_as_they_are(self, case: Case) -> None:
        for text in TENANTS:
            claim = case.claim(tenant=text, operation=text, key=text, field_digests={text: text})
            record = case.begin(claim)
            assert (record.tenant, record.operation, record.key) == (text, text, text)
            assert dict(record.field_digests) == {text: text}
            after = case.done(case.complete(record, resource_id=text))
            assert after.resource_id == text
            assert [found.id for found in case.ask(Scan(10, tenant=text))] == [claim.id]
            assert case.ask(Purge(text, 10)) == 1

    def test_texts_that_look_alike_are_two(self, case: Case) -> None:
        for field, one, other in LOOK_ALIKES:
            first = case.begin(case.claim(**{"tenant": "another", field: one}))
            second = case.begin(case.claim(**{"tenant": "another", field: other}))
            assert getattr(case.find(first.id), field) == one
            assert getattr(case.find(second.id), field) == other
            if field == "tenant":
                ids = [found.id for found in case.ask(Scan(20, tenant=one))]
                assert first.id in ids, (one, other)
                assert second.id not in ids, (one, other)

    def test_no_resource_and_an_empty_one_are_two_things(self, case: Case) -> None:
        assert case.done(case.complete(case.begin(), resource_id=None)).resource_id is None
        assert case.done(case.complete(case.begin(), resource_id="")).resource_id == ""

    def test_ids_tokens_and_fingerprints_may_hold_any_byte(self, case: Case) -> None:
        for at in range(0, 256, 32):
            part = EVERY_BYTE[at : at + 32]
            claim = case.claim(id=part, token=part[:16], fingerprint=part[::-1])
            record = case.begin(claim)
            assert (record.id, record.token, record.fingerprint) == (part, part[:16], part[::-1])
            assert case.done(case.complete(record)).state is State.COMPLETED

    def test_numbers_are_kept_exactly(self, case: Case) -> None:
        claim = case.claim(
            schema_version=2**31 - 1, fingerprint_version=32_767, lease_s=12.345, retention_s=6.789
        )
        record = case.begin(claim)
        assert (record.schema_version, record.fingerprint_version) == (2**31 - 1, 32_767)
        assert (record.lease_s, record.retention_s) == (12.345, 6.789)

    def test_an_answer_of_1_mib_comes_back_to_everybody_at_once(self, case: Case) -> None:
        answer = Answer(200, (), EVERY_BYTE * (MIB // 256))
        record = case.done(case.complete(case.begin(), answer))
        found = case.together([Find(record.id)] * 4)
        assert [each.answer == answer for each in found] == [True] * 4
