"""The caller's own writes and a completion in one DynamoDB transaction.

DynamoDB has no transaction that stays open: the caller passes its items, as for
`TransactWriteItems`, and they are written together with the completion, or nothing is.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

from oncekey._core.op import arun, run
from oncekey._core.verbs import Swap, Verb
from oncekey.errors import Misuse, StoreUnavailable
from oncekey.stores.dynamodb.items import NO_TTL
from oncekey.stores.dynamodb.statements import ApiCall, ErrorResponse, Item, n
from oncekey.stores.dynamodb.verbs import TRANSACTION_MAX

ITEMS_MAX = TRANSACTION_MAX - 1
_WRITES = frozenset({"Put", "Update", "Delete", "ConditionCheck"})


class JoinedCompletion:
    """Turns the completion's write into a transaction, and the transaction's response back."""

    def __init__(self, items: Sequence[Any], verbs: Sequence[Verb], token: str) -> None:
        _check(items)
        if len(verbs) != 1 or not isinstance(verbs[0], Swap):
            raise Misuse("with records in DynamoDB, only a completion can be joined")
        self._items = list(items)
        self._token = token

    def question(self, question: list[ApiCall]) -> list[ApiCall]:
        if not self._decides(question):
            return question
        ours = {k: v for k, v in question[0].parameters.items() if k != "ReturnValues"}
        members = [
            *self._items,
            {"Update": ours},
        ]  # last, so that `reasons` are in the order of the items
        parameters = {"TransactItems": members, "ClientRequestToken": self._token}
        return [ApiCall("transact_write_items", parameters)]

    def answer(self, question: list[ApiCall], answers: list[Any]) -> list[Any]:
        """Return the response as if the write had been sent alone. Raise the driver's error if an
        item was refused.
        """
        if not self._decides(question):
            return answers
        [answer] = answers
        if isinstance(answer, ErrorResponse):
            code, found = answer.reasons[-1] if answer.reasons else ("", None)
            if code == "ConditionalCheckFailed":
                return [ErrorResponse("ConditionalCheckFailedException", answer.message, found)]
            if answer.cause is not None and answer.code == "TransactionCanceledException":
                raise answer.cause
            return [answer]
        if isinstance(answer, dict):  # transactions do not return the previous item
            before: Item = {"kept": NO_TTL, "request": n(0)}
            return [{"Attributes": before}]
        return [answer]

    def _decides(self, question: list[ApiCall]) -> bool:
        return [call.method for call in question] == ["update_item"]


def _check(items: Sequence[Any]) -> None:
    wrong = [item for item in items if not isinstance(item, dict) or not _WRITES & item.keys()]
    if wrong or len(items) > ITEMS_MAX:
        raise Misuse(
            f"with records in DynamoDB, at most {ITEMS_MAX} items can be joined, each as "
            'TransactWriteItems takes it: {"Put": {"TableName": …, "Item": {…}}}'
        )


def _items(store: Any, caller_items: Any) -> Any:
    """Return the caller's items; raise `Misuse` for anything else."""
    if isinstance(caller_items, list | tuple):
        return caller_items
    raise Misuse(
        f"{type(caller_items).__name__} cannot be joined with records in {store.name}: give a list "
        "of items as TransactWriteItems takes them (docs/atomic.md)"
    )


# ---------------------------------------------------------------------------- without a completion


def write_calls(items: Sequence[Any], token: str) -> list[ApiCall]:
    """Return the calls that write a caller's items without a completion."""
    _check(items)
    parameters = {"TransactItems": list(items), "ClientRequestToken": token}
    return [ApiCall("transact_write_items", parameters)] if items else []


def _raise_error(answer: Any) -> None:
    if isinstance(answer, ErrorResponse):
        raise answer.cause or StoreUnavailable(f"{answer.code}: {answer.message}", sent=True)
    if isinstance(answer, Exception):
        raise answer


# ------------------------------------------------------------------------------ both together


class ItemTransactions:
    """The `Transactions` of DynamoDB: the caller passes items instead of a connection."""

    def perform(self, store: Any, caller_items: Any, verbs: Sequence[Verb]) -> list[Any]:
        """Carry out a completion together with the caller's items."""
        joined = store.join(_items(store, caller_items), verbs)
        with closing(store.connect()) as own:
            run(store.prepare(), own.ask)

            def ask(question: Any) -> Any:
                return joined.answer(question, own.ask(joined.question(question)))

            return run(store.perform(verbs), ask)

    async def aperform(self, store: Any, caller_items: Any, verbs: Sequence[Verb]) -> list[Any]:
        """The same, awaited."""
        joined = store.join(_items(store, caller_items), verbs)
        own = await store.aconnect()
        try:
            await arun(store.prepare(), own.ask)

            async def ask(question: Any) -> Any:
                return joined.answer(question, await own.ask(joined.question(question)))

            return await arun(store.perform(verbs), ask)
        finally:
            await own.close()

    def write(self, store: Any, caller_items: Any, token: bytes) -> None:
        """Write the caller's items, all or none."""
        question = store.write_calls(_items(store, caller_items), token)
        if question:
            with closing(store.connect()) as own:
                _raise_error(own.ask(question)[0])

    async def awrite(self, store: Any, caller_items: Any, token: bytes) -> None:
        """The same, awaited."""
        question = store.write_calls(_items(store, caller_items), token)
        if question:
            own = await store.aconnect()
            try:
                _raise_error((await own.ask(question))[0])
            finally:
                await own.close()
