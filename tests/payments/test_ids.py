import re

from payments import ids


def test_ids_sort_as_they_were_made_and_never_repeat() -> None:
    made = [ids.new("ch") for _ in range(2000)]
    assert len(set(made)) == len(made)
    assert all(re.fullmatch(r"ch_[0-9A-Za-z]{24}", each) for each in made)
    times = [each[3:12] for each in made]
    assert times == sorted(times)
