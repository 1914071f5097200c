"""Tables: everything the API stores.

Every row belongs to a tenant (`acct_…/test`) and is looked up by it, so no query can return another
account's rows by accident. Ids sort by creation, so the primary key also serves the lists.
Amounts are integers in the currency's minor unit. Times are seconds since 1970.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

metadata = sa.MetaData()

# In byte order, whatever the database's locale: ids must sort by creation.
_ID = sa.String().with_variant(sa.String(collation="C"), "postgresql")


def _id(name: str = "id", **kwargs: Any) -> sa.Column[str]:
    return sa.Column(name, _ID, nullable=False, **kwargs)


def _amount(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False, server_default="0")


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text)


def _json(name: str) -> sa.Column[Any]:
    return sa.Column(name, sa.JSON, nullable=True)


def _objects(name: str, *columns: Any) -> sa.Table:
    """Define a table of API objects."""
    return sa.Table(
        name,
        metadata,
        _id("tenant", primary_key=True),
        _id(primary_key=True),
        sa.Column("created", sa.BigInteger, nullable=False),
        *columns,
        sqlite_with_rowid=False,
    )


def _index_unfinished(name: str, table: sa.Table, condition: sa.ColumnElement[bool]) -> None:
    """Index the rows in progress, so that finding them does not read finished ones."""
    where: dict[str, Any] = {"postgresql_where": condition, "sqlite_where": condition}
    sa.Index(f"{name}_unfinished", table.c.created, **where)


# -------------------------------------------------------------------------- who may call

accounts = sa.Table(
    "accounts",
    metadata,
    _id(primary_key=True),
    sa.Column("created", sa.BigInteger, nullable=False),
    _text("name"),
)

api_keys = sa.Table(
    "api_keys",
    metadata,
    sa.Column("digest", sa.LargeBinary, primary_key=True),
    sa.Column("account", _ID, nullable=False, index=True),
    sa.Column("mode", sa.Text, nullable=False),
    _text("hint"),
    sa.Column("created", sa.BigInteger, nullable=False),
    sa.Column("expires", sa.BigInteger),
    sa.Column("revoked", sa.BigInteger),
)

# --------------------------------------------------------------------------------- money

customers = _objects(
    "customers",
    _text("name"),
    _text("email"),
    _text("phone"),
    _text("description"),
    _json("metadata"),
    sa.Column("deleted", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Index("customers_of_email", "tenant", "email", "id"),
)

tokens = _objects(
    "tokens",
    _json("card"),
    sa.Column("used", sa.Boolean, nullable=False, server_default=sa.false()),
)

payment_methods = _objects(
    "payment_methods",
    sa.Column("customer", _ID),
    _json("card"),
    _json("billing_details"),
    _json("metadata"),
    sa.Index("payment_methods_of_customer", "tenant", "customer", "id"),
)

charges = _objects(
    "charges",
    _amount("amount"),
    sa.Column("currency", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("capture", sa.Boolean, nullable=False),
    sa.Column("captured", sa.Boolean, nullable=False, server_default=sa.false()),
    _amount("amount_captured"),
    _amount("amount_refunded"),
    _amount("amount_reserved"),
    sa.Column("network_key", _ID, nullable=False),
    sa.Column("settling", _ID),
    _amount("settling_amount"),
    sa.Column("settling_since", sa.BigInteger),
    sa.Column("customer", _ID),
    sa.Column("payment_method", _ID),
    sa.Column("payment_intent", _ID),
    _json("card"),
    _text("description"),
    _text("receipt_email"),
    _text("statement_descriptor"),
    _json("metadata"),
    _text("authorisation"),
    _json("failure"),
    sa.Index("charges_of_intent", "tenant", "payment_intent", "id"),
    sa.Index("charges_of_customer", "tenant", "customer", "id"),
)
_index_unfinished(
    "charges", charges, sa.or_(charges.c.status == "pending", charges.c.settling.is_not(None))
)

payment_intents = _objects(
    "payment_intents",
    _amount("amount"),
    sa.Column("currency", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("capture_method", sa.Text, nullable=False),
    sa.Column("confirmation_method", sa.Text, nullable=False),
    _amount("amount_received"),
    sa.Column("customer", _ID),
    sa.Column("payment_method", _ID),
    sa.Column("latest_charge", _ID),
    _text("client_secret"),
    _text("description"),
    _text("receipt_email"),
    _text("statement_descriptor"),
    _json("metadata"),
    _json("last_payment_error"),
    sa.Column("canceled_at", sa.BigInteger),
    _text("cancellation_reason"),
    sa.Index("intents_of_customer", "tenant", "customer", "id"),
)

refunds = _objects(
    "refunds",
    _amount("amount"),
    sa.Column("currency", sa.Text, nullable=False),
    sa.Column("charge", _ID, nullable=False),
    sa.Column("payment_intent", _ID),
    sa.Column("status", sa.Text, nullable=False),
    _text("reason"),
    _json("metadata"),
    sa.Column("network_key", _ID, nullable=False),
    _text("network_id"),
    sa.Index("refunds_of_charge", "tenant", "charge", "id"),
    sa.Index("refunds_of_intent", "tenant", "payment_intent", "id"),
)
_index_unfinished("refunds", refunds, refunds.c.status == "pending")

ledger_entries = sa.Table(
    "ledger_entries",
    metadata,
    _id("transaction", primary_key=True),
    _id("ledger_account", primary_key=True),
    sa.Column("tenant", _ID, nullable=False),
    sa.Column("amount", sa.BigInteger, nullable=False),
    sa.Column("currency", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("source", _ID, nullable=False),
    sa.Column("created", sa.BigInteger, nullable=False),
    sa.Index("ledger_entries_of_account", "tenant", "ledger_account", "currency", "amount"),
)

# ------------------------------------------------------------------- events and webhooks

events = _objects(
    "events",
    sa.Column("type", sa.Text, nullable=False),
    sa.Column("data", sa.JSON, nullable=False),
    _text("request"),
    _text("idempotency_key"),
    sa.Index("events_by_age", "created"),
)

webhook_endpoints = _objects(
    "webhook_endpoints",
    sa.Column("url", sa.Text, nullable=False),
    sa.Column("enabled_events", sa.JSON, nullable=False),
    sa.Column("secrets", sa.JSON, nullable=False),
    sa.Column("status", sa.Text, nullable=False, server_default="enabled"),
    _text("description"),
    _json("metadata"),
    sa.Column("failing_since", sa.BigInteger),
)

deliveries = _objects(
    "deliveries",
    sa.Column("event", _ID, nullable=False),
    sa.Column("endpoint", _ID, nullable=False),
    sa.Column("status", sa.Text, nullable=False, server_default="pending"),
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
    sa.Column("due", sa.Float),
    sa.Column("last_status", sa.Integer),
    _text("last_error"),
    sa.Index("deliveries_due", "status", "due"),
    sa.Index("deliveries_waiting", "status", "endpoint", "due"),
    sa.Index("deliveries_of_event", "tenant", "event"),
    sa.Index("deliveries_of_endpoint", "tenant", "endpoint", "id"),
    sa.Index("deliveries_by_age", "created"),
)

delivery_attempts = _objects(
    "delivery_attempts",
    sa.Column("delivery", _ID, nullable=False),
    sa.Column("status", sa.Integer),
    _text("error"),
    sa.Column("took_s", sa.Float),
    sa.Index("attempts_of_delivery", "tenant", "delivery", "id"),
    sa.Index("attempts_by_age", "created"),
)
