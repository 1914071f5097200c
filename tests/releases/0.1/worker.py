"""Release 0.1 at work beside a later one: carries out what it is told, a line of JSON each.

    PYTHONPATH=tests/releases/0.1/oncekey.zip:. python tests/releases/0.1/worker.py <store's URL>

A question is `[name, argument, …]`, the name one of the functions below; ids travel as hex.
"""

from __future__ import annotations

import json
import secrets
import sys
from typing import Any

import oncekey
from oncekey.core import fingerprint, lifecycle
from oncekey.core import key as keys
from oncekey.core.fingerprint import Comparison
from oncekey.core.lifecycle import Held
from oncekey.core.policy import Policy
from oncekey.core.record import Answer, Claim, Record, Step
from oncekey.core.verbs import AppendStep, Find, Insert, Inserted, Purge, Scan, Steps, Swap, Sweep
from oncekey.stores.gather import Gatherer
from oncekey.stores.url import open_store
from tests.releases.plain import plain_record, plain_steps

LEASE_S, RETENTION_S = 30.0, 600.0


class Worker:
    def __init__(self, url: str) -> None:
        self._ask = Gatherer(open_store(url)).ask

    def release(self) -> str:
        """Where the code comes from."""
        return str(oncekey.__file__)

    def begin(self, key: str) -> str:
        claim = self._claim(secrets.token_bytes(32), key)
        self._ask(Insert(claim))
        return claim.id.hex()

    def find(self, record_id: str) -> Any:
        return plain_record(self._found(record_id))

    def steps(self, record_id: str) -> Any:
        return plain_steps(self._ask(Steps(bytes.fromhex(record_id))))

    def scan(self) -> Any:
        return [plain_record(record) for record in self._ask(Scan(1000))]

    def keep_step(self, record_id: str, name: str, result: str) -> str:
        held = self._held(record_id)
        return self._outcome(AppendStep(*held, Step(name, b"d", result.encode())))

    def renew(self, record_id: str) -> str:
        held = Held(*self._held(record_id))
        return self._outcome(lifecycle.renew(held, lease_s=LEASE_S, retention_s=RETENTION_S))

    def complete(self, record_id: str, body: str) -> str:
        answer = Answer(201, ((b"x-from", b"0.1"),), body.encode())
        held = Held(*self._held(record_id))
        return self._outcome(lifecycle.complete(held, answer, retention_s=RETENTION_S))

    def take(self, record_id: str, key: str) -> str:
        found = self._found(record_id)
        return self._outcome(lifecycle.take(found, self._claim(found.id, key)))

    def decide(self, record_id: str, recovery: Any) -> str:
        """What the same request gets here, under a policy with this recovery."""
        policy = Policy(recovery=recovery).settled()
        return lifecycle.decide(self._found(record_id), Comparison.SAME, policy).value

    def doubt(self, record_id: str) -> str:
        found, token = self._found(record_id), secrets.token_bytes(16)
        return self._outcome(lifecycle.doubt(found, new_token=token, retention_s=RETENTION_S))

    def sweep(self) -> int:
        return int(self._ask(Sweep(1000)))

    def purge(self, tenant: str) -> int:
        return int(self._ask(Purge(tenant, 1000)))

    def leave(self, key: str, content_type: str, body: str) -> str:
        """Begin `POST /orders`, and die."""
        return self.serve(key, content_type, body, ends=False)

    def serve(self, key: str, content_type: str, body: str, ends: bool = True) -> str:
        """What its middleware does with `POST /orders`: run it, and keep that it did; or what it
        makes of the record that it finds.
        """
        made = fingerprint.of("POST", "/orders", b"", content_type, body.encode("latin-1"))
        assert not isinstance(made, fingerprint.BadBody), made
        record_id = keys.record_id("single", "POST /orders", key)
        token, digest = secrets.token_bytes(16), made.digest
        described = ("single", "POST /orders", key, digest, made.version)
        inserted = self._ask(Insert(Claim(record_id, token, *described, LEASE_S, RETENTION_S)))
        if isinstance(inserted, Inserted) and not ends:
            return "began"
        if isinstance(inserted, Inserted):
            held = Held(record_id, inserted.fence, token)
            answer = Answer(201, ((b"x-from", b"0.1"),), b"of 0.1")
            self._ask(lifecycle.complete(held, answer, retention_s=RETENTION_S))
            return "ran"
        found = inserted.record
        told = fingerprint.compare(found.fingerprint_version, found.fingerprint, made)
        return str(lifecycle.decide(found, told, Policy().settled()).name)

    def _found(self, record_id: str) -> Record:
        record: Record = self._ask(Find(bytes.fromhex(record_id)))
        return record

    def _held(self, record_id: str) -> tuple[bytes, int, bytes]:
        record = self._found(record_id)
        return record.id, record.fence, record.token

    def _claim(self, record_id: bytes, key: str) -> Claim:
        token, fingerprint = secrets.token_bytes(16), b"\x01" * 32
        described = ("acct_1", "POST /orders", key, fingerprint, 1)
        return Claim(record_id, token, *described, LEASE_S, RETENTION_S)

    def _outcome(self, verb: Swap | AppendStep) -> str:
        return type(self._ask(verb)).__name__


if __name__ == "__main__":
    worker = Worker(sys.argv[1])
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        sys.stdout.write(json.dumps(getattr(worker, name)(*arguments)) + "\n")
        sys.stdout.flush()
