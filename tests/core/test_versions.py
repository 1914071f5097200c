"""Ways between schema versions: the shortest, the same for everybody, and pure."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from oncekey._core.record import Answer
from oncekey._core.versions import VERSION_MAX, Upcast, Versions
from oncekey.errors import Misuse

ANSWER = Answer(201, ((b"content-type", b"text/plain"),), b"0")


def hop(old: int, new: int) -> Upcast:
    """Writes down that it was taken."""
    note = f" {old}>{new}".encode()
    return lambda answer: dataclasses.replace(answer, body=(answer.body or b"") + note)


def registry(*pairs: tuple[int, int]) -> Versions:
    versions = Versions()
    for old, new in pairs:
        versions.upcast(old, new)(hop(old, new))
    return versions


def way(versions: Versions, old: int, new: int) -> str:
    body = versions.convert(ANSWER, old, new).body
    assert body is not None
    return body.decode()


def test_versions_are_climbed_one_by_one() -> None:
    assert way(registry((1, 2), (2, 3), (3, 4)), 1, 4) == "0 1>2 2>3 3>4"


def test_the_shortest_way_is_taken() -> None:
    assert way(registry((1, 2), (2, 3), (3, 4), (1, 4)), 1, 4) == "0 1>4"
    assert way(registry((1, 2), (2, 3), (3, 4), (2, 4)), 1, 4) == "0 1>2 2>4"


def test_p3_every_process_takes_the_same_way_whatever_was_registered_first() -> None:
    pairs = [(1, 2), (1, 3), (2, 4), (3, 4)]
    ways = {way(registry(*order), 1, 4) for order in itertools.permutations(pairs)}
    assert ways == {"0 1>2 2>4"}


def test_downwards_is_a_way_too() -> None:
    assert way(registry((3, 4), (4, 3)), 4, 3) == "0 4>3"


@pytest.mark.parametrize("pairs", [(), ((4, 3),), ((1, 3), (4, 5)), ((3, 2), (2, 3))])
def test_no_way_is_no_way(pairs: tuple[tuple[int, int], ...]) -> None:
    assert registry(*pairs).path(3, 4) is None
    assert registry(*pairs).path(3, 3) is None


def test_p11_a_circle_ends() -> None:
    assert registry((1, 2), (2, 3), (3, 1)).path(1, 9) is None


def test_the_kept_answer_is_not_touched() -> None:
    before = dataclasses.replace(ANSWER)
    registry((1, 2)).convert(ANSWER, 1, 2)
    assert before == ANSWER


@pytest.mark.parametrize("result", [None, b"body", Answer(200, (), None), Answer(200, (), "x")])  # type: ignore[arg-type]
def test_what_is_no_whole_answer_is_refused(result: Any) -> None:
    versions = Versions()
    versions.upcast(1, 2)(lambda answer: result)
    with pytest.raises(TypeError, match="must return an Answer with a body of bytes"):
        versions.convert(ANSWER, 1, 2)


def fails(answer: Answer) -> Answer:
    raise KeyError("total")


def test_what_a_function_raises_is_raised() -> None:
    versions = Versions()
    versions.upcast(1, 2)(fails)
    with pytest.raises(KeyError):
        versions.convert(ANSWER, 1, 2)


# ----------------------------------------------------------------------------- registering


def test_a_registered_function_stays_what_it_is() -> None:
    versions = Versions()

    @versions.upcast(1, 2)
    def to_2(answer: Answer) -> Answer:
        return answer

    assert to_2(ANSWER) is ANSWER
    assert versions.path(1, 2) == [to_2]


@pytest.mark.parametrize("pair", [(1, 1), (-1, 2), (1, VERSION_MAX + 1), (True, 2), ("1", 2)])
def test_a_pair_that_cannot_be_is_refused(pair: tuple[Any, Any]) -> None:
    with pytest.raises(Misuse):
        Versions().upcast(*pair)


def test_a_pair_has_one_function() -> None:
    with pytest.raises(Misuse, match="one function for each pair"):
        registry((1, 2), (1, 2))


def test_what_would_have_to_wait_is_refused() -> None:
    async def slow(answer: Answer) -> Answer:
        return answer

    with pytest.raises(Misuse, match="must not wait"):
        Versions().upcast(1, 2)(slow)  # type: ignore[type-var]
