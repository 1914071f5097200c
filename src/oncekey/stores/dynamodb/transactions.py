"""Joining on DynamoDB: the caller's own writes and a completion in one transaction.

There is no transaction to be open in between: the caller hands over its items, as for
`TransactWriteItems`, and they are written together with the completion, or nothing is.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from oncekey._core.op import arun, run
from oncekey._core.verbs import Swap, Verb
from oncekey.errors import Misuse, StoreUnavailable
from oncekey.stores.dynamodb.items import KEPT
from oncekey.stores.dynamodb.statements import Call, Denied, Item, n
from oncekey.stores.dynamodb.verbs import TRANSACTION_MAX

ITEMS_MAX = TRANSACTION_MAX - 1
_WRITES = frozenset({"Put", "Update", "Delete", "ConditionCheck"})


class Joined:
    """Turns the one write that decides into a transaction, and its answer back."""

    def __init__(self, items: Sequence[Any], verbs: Sequence[Verb], token: str) -> None:
        _check(items)
        if len(verbs) != 1 or not isinstance(verbs[0], Swap):
            raise Misuse("with records in DynamoDB, only a completion can be joined")
        self._items = list(items)
        self._token = token

    def question(self, question: list[Call]) -> list[Call]:
        if not self._decides(question):
            return question
        ours = {k: v for k, v in question[0].parameters.items() if k != "ReturnValues"}
        members = [*self._items, {"Update": ours}]  # last, so that reasons stand as the items do
        parameters = {"TransactItems": members, "ClientRequestToken": self._token}
        return [Call("transact_write_items", parameters)]

    def answer(self, question: list[Call], answers: list[Any]) -> list[Any]:
        """As if the write had gone alone. Raises the driver's error if an item was refused."""
        if not self._decides(question):
            return answers
        [answer] = answers
        if isinstance(answer, Denied):
            code, found = answer.reasons[-1] if answer.reasons else ("", None)
            if code == "ConditionalCheckFailed":
                return [Denied("ConditionalCheckFailedException", answer.message, found)]
            if answer.cause is not None and answer.code == "TransactionCanceledException":
                raise answer.cause
            return [answer]
        if isinstance(answer, dict):  # transactions do not tell what was there before
            before: Item = {"kept": KEPT, "request": n(0)}
            return [{"Attributes": before}]
        return [answer]

    def _decides(self, question: list[Call]) -> bool:
        return [call.method for call in question] == ["update_item"]


def _check(items: Sequence[Any]) -> None:
    wrong = [item for item in items if not isinstance(item, dict) or not _WRITES & item.keys()]
    if wrong or len(items) > ITEMS_MAX:
        raise Misuse(
            f"with records in DynamoDB, at most {ITEMS_MAX} items can be joined, each as "
            'TransactWriteItems takes it: {"Put": {"TableName": …, "Item": {…}}}'
        )


def _items(store: Any, given: Any) -> Any:
    if isinstance(given, list | tuple):
        return given
    raise Misuse(
        f"{type(given).__name__} cannot be joined with records in {store.name}: give a list of "
        "items as TransactWriteItems takes them (docs/atomic.md)"
    )


# --------------------------------------------------------------- where there is no completion


def alone(items: Sequence[Any], token: str) -> list[Call]:
    """How to write a caller's items without a completion."""
    _check(items)
    parameters = {"TransactItems": list(items), "ClientRequestToken": token}
    return [Call("transact_write_items", parameters)] if items else []


def _judge(answer: Any) -> None:
    if isinstance(answer, Denied):
        raise answer.cause or StoreUnavailable(f"{answer.code}: {answer.message}", sent=True)
    if isinstance(answer, Exception):
        raise answer


# ------------------------------------------------------------------------------ both together


class ItemTransactions:
    """The `Transactions` of DynamoDB: what is given are items."""

    def perform(self, store: Any, given: Any, verbs: Sequence[Verb]) -> list[Any]:
        """Carry out a completion together with the items that are given."""
        joined = store.joined(_items(store, given), verbs)
        with closing(store.connect()) as own:
            run(store.prepare(), own.ask)

            def ask(question: Any) -> Any:
                return joined.answer(question, own.ask(joined.question(question)))

            return run(store.perform(verbs), ask)

    async def aperform(self, store: Any, given: Any, verbs: Sequence[Verb]) -> list[Any]:
        """The same, awaited."""
        joined = store.joined(_items(store, given), verbs)
        own = await store.aconnect()
        try:
            await arun(store.prepare(), own.ask)

            async def ask(question: Any) -> Any:
                return joined.answer(question, await own.ask(joined.question(question)))

            return await arun(store.perform(verbs), ask)
        finally:
            await own.close()

    def write(self, store: Any, given: Any, token: bytes) -> None:
        """Write the items that are given, all or none."""
        question = store.alone(_items(store, given), token)
        if question:
            with closing(store.connect()) as own:
                _judge(own.ask(question)[0])

    async def awrite(self, store: Any, given: Any, token: bytes) -> None:
        """The same, awaited."""
        question = store.alone(_items(store, given), token)
        if question:
            own = await store.aconnect()
            try:
                _judge((await own.ask(question))[0])
            finally:
                await own.close()
