"""Looking at records: what is shown, what is not, and what is found."""

import base64

import pytest

from oncekey._core.key import derive, record_id, short_hash
from oncekey._core.record import Answer
from oncekey._core.retention import with_tombstone
from tests.cli.conftest import ANSWER, OPERATION, TENANT, Oncekey, Seed

KEY = "order-17-of-jane@example.org"


def facts(out: str) -> dict[str, str]:
    return {line[:15].strip(): line[15:] for line in out.splitlines()}


# ------------------------------------------------------------------------ show


def test_show_by_key(oncekey: Oncekey, seed: Seed) -> None:
    record = seed.completed(KEY)
    seed.tally(record, replays=3, conflicts=1)

    ran = oncekey("show", "--tenant", TENANT, "--operation", OPERATION, "--key", KEY)

    shown = facts(ran.out)
    assert ran.code == 0
    assert shown["id"] == record.hex()
    assert shown["state"] == "completed"
    assert shown["that is"] == "a retry gets the stored response"
    assert shown["answer"] == "status 201, 18 bytes  (--body shows it)"
    assert shown["retries"] == "3 replayed, 1 refused"
    assert shown["expires"] in ("in 1 d", "in 23 h 59 min")


def test_show_by_key_where_the_scope_is_the_tenant(oncekey: Oncekey, seed: Seed) -> None:
    seed.completed(KEY, id=record_id(TENANT, None, KEY))

    assert oncekey("show", "--tenant", TENANT, "--key", KEY).code == 0


@pytest.mark.parametrize(
    "message_id", ["order 17", "Bestellung-\N{SNOWMAN}", "m" * 300, "sha256:1"]
)
def test_show_by_the_id_of_a_message_whatever_it_is(
    oncekey: Oncekey, seed: Seed, message_id: str
) -> None:
    """What cannot be a key is kept by its digest, which nobody who looks for it knows."""
    key = derive(message_id)
    assert isinstance(key, str)
    seed.completed(key)

    ran = oncekey("show", "--tenant", TENANT, "--operation", OPERATION, "--key", message_id)
    raw = oncekey("show", "--tenant", TENANT, "--operation", OPERATION, "--key", key)

    assert (ran.code, raw.code) == (0, 0)
    assert "a retry gets the stored response" in ran.out


def test_show_by_the_first_digits_of_an_id(oncekey: Oncekey, seed: Seed) -> None:
    ids = [start.ljust(64, "a") for start in ("00000000", "12340000", "12345678", "ffffffff")]
    for record in ids:
        seed.completed(record, id=bytes.fromhex(record))

    for record in ids:
        for digits in (8, 9, 64):
            ran = oncekey("show", "--id", record[:digits].upper(), "--json")
            assert ran.json["id"] == record
    for absent in ("0001", "1235", "fffe", "0" * 64, "f" * 64):
        assert oncekey("show", "--id", absent).code == 1


def test_digits_of_several_ids_are_not_guessed(oncekey: Oncekey, seed: Seed) -> None:
    seed.completed("a", id=bytes.fromhex("1234".ljust(64, "0")))
    seed.completed("b", id=bytes.fromhex("1234".ljust(64, "1")))

    ran = oncekey("show", "--id", "1234")

    assert ran.code == 2
    assert "more digits" in ran.err


def test_not_found_says_how_to_go_on(oncekey: Oncekey, seed: Seed) -> None:
    seed.completed(KEY)

    without = oncekey("show", "--tenant", TENANT, "--key", KEY)
    wrong = oncekey("show", "--tenant", TENANT, "--operation", "POST /x", "--key", KEY)
    by_id = oncekey("show", "--id", "0123456789abcdef")

    for ran in (without, wrong, by_id):
        assert (ran.code, ran.out) == (1, "")
    assert "--operation" in without.err
    assert short_hash(KEY) in without.err
    assert "spelling" in wrong.err
    assert "swept" in by_id.err


def test_p12_neither_key_nor_content_is_shown_unless_asked_for(
    oncekey: Oncekey, seed: Seed
) -> None:
    record = seed.completed(KEY).hex()

    plain = [oncekey("show", "--id", record), oncekey("show", "--id", record, "--json")]
    plain += [oncekey("list"), oncekey("list", "--json")]
    asked = oncekey("show", "--id", record, "--show-keys", "--body")
    listed = oncekey("list", "--show-keys")

    for ran in plain:
        assert ran.code == 0
        assert KEY not in ran.out
        assert "1234" not in ran.out.replace(record, "")
        assert "/charges/1" not in ran.out
        assert short_hash(KEY) in ran.out
    assert KEY in asked.out
    assert asked.out.endswith('location: /charges/1\n\n{"secret": "1234"}\n')
    assert KEY in listed.out


def test_bodies_as_json(oncekey: Oncekey, seed: Seed) -> None:
    text = seed.completed("text").hex()
    octets = seed.completed("octets", Answer(200, (), b"\xff\x00")).hex()
    fact = seed.completed("fact", Answer(200, (), None)).hex()

    def answer(record: str) -> object:
        return oncekey("show", "--id", record, "--json", "--body", "--show-keys").json["answer"]

    headers = [["location", "/charges/1"]]
    assert answer(text) == {"headers": headers, "body": '{"secret": "1234"}'}
    encoded = base64.b64encode(b"\xff\x00").decode()
    assert answer(octets) == {"headers": [], "body": None, "body_base64": encoded}
    assert answer(fact) == {"headers": [], "body": None}


def test_a_body_cannot_speak_to_the_terminal(oncekey: Oncekey, seed: Seed) -> None:
    record = seed.completed("k", Answer(200, ((b"x", b"\x1b[31m"),), b"one\n\x1b]0;owned\x07\xff"))

    ran = oncekey("show", "--id", record.hex(), "--body")

    assert "\x1b" not in ran.out
    assert ran.out.endswith("x: \\x1b[31m\n\none\n\\x1b]0;owned\\x07\\xff\n")


def test_a_lapsed_record(oncekey: Oncekey, hour_ago: Seed) -> None:
    rerun = hour_ago.running("a", recovery="rerun").id.hex()
    block = hour_ago.running("b", recovery="block").id.hex()

    shown = facts(oncekey("show", "--id", rerun).out)
    assert shown["state"] == "running, lapsed"
    assert shown["that is"] == "its process died or hung: a retry takes it over"
    assert shown["lease"] == "over since 59 min 30 s"
    assert shown["first attempt"] == "1 h ago"
    shown = facts(oncekey("show", "--id", block).out)
    assert shown["that is"] == "its process died or hung: a retry makes its outcome unknown"


def test_what_the_next_request_gets(oncekey: Oncekey, seed: Seed, hour_ago: Seed) -> None:
    means = {
        seed.running("a").id: ("running", "an attempt is running: a retry is told to wait"),
        seed.completed("b", Answer(201, (), None)): (
            "completed",
            "a retry learns that it was done; the response was not stored",
        ),
        seed.released("c"): ("released", "it failed and was released: a retry runs"),
        seed.released("d", no_effect=True): (
            "released",
            "the next request with this key runs, even a different one",
        ),
        seed.unknown("e"): (
            "unknown",
            "nobody knows how it ended: retries are refused until an operator resolves it",
        ),
        hour_ago.completed("g", with_tombstone(ANSWER, 86_000.0)): (
            "completed",
            "a tombstone: a retry learns that it was done; its response is gone",
        ),
        hour_ago.completed("f", retention_s=60.0): (
            "completed, expired",
            "counts as absent: the next request runs, and the next sweep removes the record",
        ),
    }

    for record, (state, meaning) in means.items():
        shown = facts(oncekey("show", "--id", record.hex()).out)
        assert (shown["state"], shown["that is"]) == (state, meaning)


def test_an_answer_that_its_record_outlives(oncekey: Oncekey, seed: Seed) -> None:
    """Its own line is no header."""
    record = seed.completed("a", with_tombstone(ANSWER, 80_000.0))
    shown = oncekey("show", "--id", record.hex(), "--body").out
    assert facts(shown)["expires"].split(", its answer in ")[1].startswith("1 h 46 min")
    assert "tombstone" not in shown
    whole = oncekey("show", "--id", record.hex(), "--body", "--json").json
    assert whole["answer"]["headers"] == [["location", "/charges/1"]]


def test_steps(oncekey: Oncekey, seed: Seed) -> None:
    held = seed.running("a")
    seed.step(held, "authorise", b"result")
    seed.step(held, "capture", None)

    text = oncekey("show", "--id", held.id.hex()).out
    steps = oncekey("show", "--id", held.id.hex(), "--json").json["steps"]

    assert [line.split(None, 1)[1] for line in text.splitlines() if line.startswith("step ")] == [
        "authorise: done",
        "capture: started",
    ]
    assert steps == [{"name": "authorise", "done": True}, {"name": "capture", "done": False}]


# ------------------------------------------------------------------------ list


def test_list_is_a_table(oncekey: Oncekey, seed: Seed) -> None:
    record = seed.completed(KEY)

    ran = oncekey("list")

    header, row = ran.out.splitlines()
    assert (ran.code, ran.err) == (0, "")
    assert header.split("  ")[0] == "ID"
    assert row.startswith(record.hex()[:16] + "  completed  acme    POST /charges  ")
    assert header.index("OPERATION") == row.index("POST")
    assert header.index("KEY HASH") == row.index(short_hash(KEY))


def test_list_by_state_and_tenant(oncekey: Oncekey, seed: Seed) -> None:
    seed.completed("a")
    seed.released("b")
    seed.completed("c", tenant="globex")

    def keys(*words: str) -> set[str]:
        ran = oncekey("list", "--json", "--show-keys", *words)
        return {record["key"] for record in ran.json["records"]}

    assert keys() == {"a", "b", "c"}
    assert keys("--state", "released") == {"b"}
    assert keys("--tenant", "globex") == {"c"}
    assert keys("--tenant", "globex", "--state", "released") == set()


def test_list_of_nothing_is_1(oncekey: Oncekey, seed: Seed) -> None:
    seed.completed("a")

    ran = oncekey("list", "--state", "unknown")
    as_json = oncekey("list", "--state", "unknown", "--json")

    assert (ran.code, ran.out, ran.err) == (1, "", "no records match\n")
    assert (as_json.code, as_json.json) == (1, {"records": [], "next": None})


def test_pages_give_every_record_once(oncekey: Oncekey, seed: Seed) -> None:
    expected = sorted(seed.completed(f"key-{number}").hex() for number in range(7))

    seen: list[str] = []
    words: list[str] = []
    while True:
        page = oncekey("list", "--json", "--limit", "3", *words).json
        seen += [record["id"] for record in page["records"]]
        if page["next"] is None:
            break
        words = ["--after", page["next"]]

    assert seen == expected


def test_a_page_says_how_to_go_on(oncekey: Oncekey, seed: Seed) -> None:
    ids = sorted(seed.completed(f"key-{number}").hex() for number in range(3))

    first = oncekey("list", "--limit", "2")
    exact = oncekey("list", "--limit", "3")
    by_digits = oncekey("list", "--after", ids[1][:16])

    assert first.err == f"2 shown, there are more: add --after {ids[1]}\n"
    assert exact.err == ""
    assert [line.split()[0] for line in by_digits.out.splitlines()[1:]] == [ids[2][:16]]


def test_a_purged_record_has_no_key(oncekey: Oncekey, seed: Seed) -> None:
    record = seed.completed(KEY).hex()
    oncekey("purge", "--tenant", TENANT)

    assert facts(oncekey("show", "--id", record).out)["key"] == "(purged)"
    assert oncekey("show", "--id", record, "--json").json["key_hash"] is None


def test_a_tenant_cannot_speak_to_the_terminal(oncekey: Oncekey, seed: Seed) -> None:
    record = seed.completed("k", tenant="\x1b[2Jacme\n", operation="x" * 500).hex()

    for ran in (oncekey("list"), oncekey("show", "--id", record)):
        assert "\x1b" not in ran.out
        assert "\\x1b[2Jacme\\n" in ran.out
        assert max(map(len, ran.out.splitlines())) < 250


# ------------------------------------------------------------------------ count


def test_count(oncekey: Oncekey, seed: Seed) -> None:
    for number in range(12):
        seed.completed(f"key-{number}")
    seed.released("r")

    assert oncekey("count").out.splitlines() == [
        "STATE      RECORDS",
        "running          0",
        "completed       12",
        "released         1",
        "unknown          0",
        "total           13",
    ]
    assert oncekey("count", "--json").json == {
        "running": 0,
        "completed": 12,
        "released": 1,
        "unknown": 0,
        "total": 13,
    }
