import re

from oncekey._core.key_age import key_time
from oncekey.client.keys import uuid7
from payments import clock
from payments.storage import ids


def test_ids_sort_as_they_were_made_and_never_repeat() -> None:
    made = [ids.new("ch") for _ in range(2000)]
    assert len(set(made)) == len(made)
    assert all(re.fullmatch(r"ch_[0-9A-Za-z]{24}", each) for each in made)
    times = [each[3:12] for each in made]
    assert times == sorted(times)


def test_a_key_of_our_own_tells_when_it_was_made_and_that_it_is_ours() -> None:
    before = clock.wall()
    made = [ids.generated_key() for _ in range(2000)]
    assert len(set(made)) == len(made)
    assert all(ids.is_generated_key(key) for key in made)
    told = key_time(made[0])
    assert told is not None
    assert before - 0.001 <= told <= clock.wall()
    others = ("order-17", "auto-1", uuid7(before, bytes(10)), made[0] + "x", made[0].upper())
    assert not any(ids.is_generated_key(key) for key in others)
