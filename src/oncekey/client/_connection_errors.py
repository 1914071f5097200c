"""Whether an error came while its connection was being made: then nothing of the request was sent.

The libraries' errors mostly say so by their class. Where one class stands for both (what requests
raises for a refused connection and for one that broke later, or a time limit from outside), it is
read off where the error came from.
"""

from __future__ import annotations

from collections.abc import Iterator

_MAKING = frozenset({"connect", "_connect", "connect_tcp", "connect_unix_socket", "start_tls"})
"""The functions of these libraries within which a connection is made, with its proxy and TLS."""
_LIBRARIES = frozenset({"urllib3", "httpcore", "httpcore2"})
_CHAIN_MAX = 20


def came_from_connecting(error: BaseException, outer: BaseException | None) -> bool:
    """Whether it, or what caused it, was raised while a connection was being made. `outer` is what
    the caller was already handling, which Python takes for a cause too.
    """
    return any(_is_within(each) for each in chain(error, outer))


def chain(error: BaseException, outer: BaseException | None = None) -> Iterator[BaseException]:
    """An error and those that it came from, also as urllib3 hands them on: as arguments."""
    waiting: list[object] = [error]
    seen: set[int] = {id(outer)}
    while waiting and len(seen) < _CHAIN_MAX:
        each = waiting.pop()
        if not isinstance(each, BaseException) or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        waiting += [each.__cause__, each.__context__, getattr(each, "reason", None), *each.args]


def _is_within(error: BaseException) -> bool:
    frames = error.__traceback__
    while frames is not None:
        frame = frames.tb_frame
        package = str(frame.f_globals.get("__name__")).partition(".")[0]
        if frame.f_code.co_name in _MAKING and package in _LIBRARIES:
            return True
        frames = frames.tb_next
    return False
