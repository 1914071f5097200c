"""Chores: what a server does from time to time beside its requests, in a thread of its own."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

from payments.webhooks.outage import Outage


class Chore(ABC):
    """Done every `every_s` until it is stopped. What fails is logged, and tried again later."""

    every_s: float

    def __init__(self) -> None:
        self.ends = threading.Event()
        """Set when it is to stop: whoever is at it takes up nothing more."""
        self._thread: threading.Thread | None = None

    @abstractmethod
    def do(self) -> object:
        """Do it once."""

    def start(self) -> None:
        """Do it from time to time, in a thread."""
        name = f"payments-{type(self).__name__.lower()}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take up nothing more, and wait for what is under way."""
        self.ends.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        name = type(self).__name__
        outage = Outage(f"{name} fails, and is tried again", f"{name} works again")
        while not self.ends.wait(outage.pause_s(self.every_s)):
            try:
                self.do()
            except Exception as error:
                outage.failed(error)
            else:
                outage.succeeded()
