"""Calls of a function as the engine sees them: key, tenant and fingerprint, from the arguments."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from oncekey._core import arguments as canonical
from oncekey._core import fingerprint as fingerprints
from oncekey._core import key as keys
from oncekey._core.expression import ArgumentFunction, Expression, Source
from oncekey._core.key import BadKey
from oncekey._core.policy import Policy
from oncekey._core.validation import TENANT_CHARS_MAX, is_storable
from oncekey._engine.decisions import Call
from oncekey.errors import Misuse

SINGLE_TENANT = "single"


class FunctionCalls:
    """Reads the calls of one function. `policy` is settled; `key` is None where each call brings
    one of its own.
    """

    def __init__(
        self,
        operation: str,
        policy: Policy,
        signature: inspect.Signature,
        *,
        key: Source | None,
        tenant: Source = SINGLE_TENANT,
        fingerprint: Callable[..., Any] | None = None,
    ) -> None:
        self._operation = operation
        self._policy = policy
        self._signature = signature
        names = signature.parameters
        self._key = None if key is None else Expression("key", key, names)
        if self._key is not None and self._key.constant:
            raise Misuse(
                f"key={key!r} is the same for every call, so only the first would ever run: name "
                "an argument in it, such as key='{order_id}'"
            )
        self._tenant = Expression("tenant", tenant, names)
        self._same = (
            None if fingerprint is None else ArgumentFunction("fingerprint", fingerprint, names)
        )

    @property
    def has_key(self) -> bool:
        """Whether the key is made from the arguments."""
        return self._key is not None

    def read(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str = "") -> Call:
        """A call with these arguments, or by this name of its own; raises `Misuse` where that gives
        no key.
        """
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        try:
            key = keys.derive(self._key(arguments) if self._key else name)
            tenant = self._tenant(arguments)
        except Misuse as error:
            raise Misuse(f"{self._operation}: {error}") from None
        if isinstance(key, BadKey):
            raise Misuse(f"{self._operation}: {key.reason}")
        if not is_storable(tenant, TENANT_CHARS_MAX):
            raise Misuse(
                f"{self._operation}: its tenant is longer than {TENANT_CHARS_MAX} characters, or "
                "holds some that no store keeps"
            )
        same = canonical.canonical(self._same(arguments) if self._same else arguments)
        return Call(
            tenant,
            self._operation,
            key,
            canonical.fingerprint(same),
            fingerprints.field_digests("application/json", same, key)
            if self._policy.field_digests
            else {},
            self._encode_request(args, kwargs),
        )

    def _encode_request(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes | None:
        """The arguments, for calls that may have to be finished without their caller.

        Only where JSON gives back the very same: anybody else's retry would do something else.
        """
        if self._policy.recovery not in ("resume", "ask"):
            return None
        call = [list(args), dict(kwargs)]
        try:
            text = json.dumps(call, separators=(",", ":"))
            same = repr(json.loads(text)) == repr(call)  # an enumeration may equal its text
        except (TypeError, ValueError, RecursionError):
            return None
        return text.encode() if same and len(text) <= self._policy.request_kept_bytes_max else None

    def decode_request(self, request: bytes) -> tuple[list[Any], dict[str, Any]]:
        """The arguments that were kept with a call."""
        args, kwargs = json.loads(request)
        return args, kwargs
