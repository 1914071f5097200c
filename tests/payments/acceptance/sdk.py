"""Stripe's own clients for Python and for Node, unmodified, behind one face: so that each test is
written once, and holds for both.
"""

from __future__ import annotations

import json
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import stripe

from tests.servers.npm import node_modules
from tests.servers.programs import find_tool

HERE = Path(__file__).parent
END_S_MAX = 20
RETRIES = 2
"""What the client for Node does by itself; the one for Python is told to."""

Params = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answered:
    """What a call gave: the object, and the headers that it came with."""

    object: dict[str, Any]
    headers: dict[str, str]

    def __getitem__(self, name: str) -> Any:
        return self.object[name]

    @property
    def is_replay(self) -> bool:
        return self.headers.get("idempotent-replayed") == "true"


class Refused(Exception):
    """What a call raised, as both clients tell it."""

    def __init__(
        self,
        *,
        kind: str,
        message: str,
        status: int | None,
        code: str | None,
        decline_code: str | None,
        param: str | None,
        headers: dict[str, str],
    ) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        """CardError, InvalidRequestError, …"""
        self.message = message
        self.status = status
        self.code = code
        self.decline_code = decline_code
        self.param = param
        self.headers = headers


class Sdk(ABC):
    """One of the clients. `name` is written as in Python: payment_intents.create."""

    @abstractmethod
    def ask(
        self,
        name: str,
        *ids: str,
        params: Params | None = None,
        key: str | None = None,
        retries: int | None = None,
    ) -> Answered:
        """Call a method; `Refused` if the client raises. Without `retries`, it tries `RETRIES`
        times more."""

    @abstractmethod
    def pages(self, name: str, params: Params) -> list[str]:
        """The ids of a whole list, as the client's own paging finds them."""

    @abstractmethod
    def event(self, payload: str, header: str, secret: str) -> dict[str, Any]:
        """A delivery, checked and read; `Refused` if the client does not believe it."""

    @abstractmethod
    def close(self) -> None: ...


class PythonSdk(Sdk):
    def __init__(self, port: int, api_key: str) -> None:
        self.client = stripe.StripeClient(
            api_key,
            base_addresses={"api": f"http://127.0.0.1:{port}"},
            max_network_retries=RETRIES,
        )

    def ask(
        self,
        name: str,
        *ids: str,
        params: Params | None = None,
        key: str | None = None,
        retries: int | None = None,
    ) -> Answered:
        said = {"idempotency_key": key, "max_network_retries": retries}
        options = {option: value for option, value in said.items() if value is not None}
        try:
            found = self._method(name)(*ids, params=params or {}, options=options)
        except stripe.StripeError as error:
            raise _as_refused(error) from error
        return Answered(found.to_dict(), _lower(found.last_response.headers))

    def pages(self, name: str, params: Params) -> list[str]:
        return [each.id for each in self._method(name)(params=params).auto_paging_iter()]

    def event(self, payload: str, header: str, secret: str) -> dict[str, Any]:
        try:
            event = stripe.Webhook.construct_event(payload, header, secret)
        except stripe.StripeError as error:
            raise _as_refused(error) from error
        found: dict[str, Any] = event.to_dict()
        return found

    def close(self) -> None:
        """Nothing of its own is open."""

    def _method(self, name: str) -> Any:
        found: Any = self.client.v1
        for word in name.split("."):
            found = getattr(found, word)
        return found


def _as_refused(error: stripe.StripeError) -> Refused:
    body = error.json_body.get("error", {}) if isinstance(error.json_body, dict) else {}
    return Refused(
        kind=type(error).__name__,
        message=str(error),
        status=error.http_status,
        code=error.code,
        decline_code=body.get("decline_code"),
        param=getattr(error, "param", None),
        headers=_lower(error.headers or {}),
    )


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


class NodeSdk(Sdk):
    """In a process of its own, over bridge.mjs; for one thread."""

    def __init__(self, port: int, api_key: str) -> None:
        program = find_tool("node")
        self._child = subprocess.Popen(
            [program.path, HERE / "bridge.mjs", node_modules(HERE), api_key, str(port)],
            env=program.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(
        self,
        name: str,
        *ids: str,
        params: Params | None = None,
        key: str | None = None,
        retries: int | None = None,
    ) -> Answered:
        said = {"idempotencyKey": key, "maxNetworkRetries": retries}
        options = {option: value for option, value in said.items() if value is not None}
        found = self._call("ask", name=name, ids=ids, params=params or {}, options=options)
        return Answered(**found)

    def pages(self, name: str, params: Params) -> list[str]:
        found: list[str] = self._call("pages", name=name, params=params)
        return found

    def event(self, payload: str, header: str, secret: str) -> dict[str, Any]:
        found: dict[str, Any] = self._call("event", payload=payload, header=header, secret=secret)
        return found

    def close(self) -> None:
        try:
            self._child.communicate(timeout=END_S_MAX)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.communicate()

    def _call(self, command: str, **argument: Any) -> Any:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps([command, argument]) + "\n")
        self._child.stdin.flush()
        answer = json.loads(self._child.stdout.readline())
        if "failed" in answer:
            raise Refused(**answer["failed"])
        return answer["ok"]


SDKS: dict[str, Callable[[int, str], Sdk]] = {"python": PythonSdk, "node": NodeSdk}
