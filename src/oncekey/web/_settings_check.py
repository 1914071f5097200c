"""Settings by their names: one that is misspelt or missing is reported with what to write.

A metaclass, because Python itself refuses such a call before `__init__` could say more, and because
the one that serves ASGI (`oncekey.web._misconfigured`) has to see every mistake of a call.
"""

from __future__ import annotations

import difflib
import inspect
from typing import Any

from oncekey.errors import Misuse

_MISSING = {
    "store": "store='sqlite:///keys.db', or the URL of another store",
    "tenant": "tenant=account_of, a function from a request to the stable id of its account; "
    "tenant=oncekey.single_tenant says that there is only one",
}


class Checked(type):
    """The class of what is made with settings."""

    def __call__(cls, *args: Any, **settings: Any) -> Any:
        made_by = inspect.signature(cls.__init__)  # type: ignore[misc]  # of this very class
        check_names(cls.__name__, made_by, args, settings)
        return super().__call__(*args, **settings)


def check_names(
    name: str, signature: inspect.Signature, args: tuple[Any, ...], settings: dict[str, Any]
) -> None:
    """Raise `Misuse` for a call that does not fit the signature of a method."""
    parameters = list(signature.parameters.values())[1:]
    if not any(each.kind is each.VAR_KEYWORD for each in parameters):
        known = [each.name for each in parameters if each.kind is not each.POSITIONAL_ONLY]
        for unknown in settings.keys() - set(known):
            raise Misuse(f"{name} has no setting {unknown!r}: {_instead(unknown, known)}")
    for each in parameters:
        if each.name in _MISSING and each.default is each.empty and each.name not in settings:
            raise Misuse(f"{name} needs {each.name}=…: write {_MISSING[each.name]}")
    try:
        signature.bind(None, *args, **settings)
    except TypeError as error:
        raise Misuse(f"{name}(…): {error}") from None


def _instead(unknown: str, known: list[str]) -> str:
    """What was meant, most likely; else what there is."""
    alike = difflib.get_close_matches(unknown, known, n=1)
    return f"did you mean {alike[0]!r}?" if alike else f"choose from {', '.join(known)}"
