"""Letting time pass without waiting: every kept deadline and date is moved back by as much."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import psycopg
import redis as redis_client

from tests.servers.mariadb import mysql_connection


def sqlite(path: Path, seconds: float) -> None:
    """Leases are readings of the boot clock, dates of the wall clock: both went on."""
    with contextlib.closing(sqlite3.connect(path, timeout=10)) as db, db:
        db.execute("PRAGMA wal_autocheckpoint = 0")  # as the store wants it
        db.execute("UPDATE oncekey_claims SET created = created - ?", (seconds,))
        db.execute("UPDATE oncekey_claims SET expires = expires - ?", (seconds,))
        db.execute(
            "UPDATE oncekey_claims SET lease_until = lease_until - ? WHERE state = 'running'",
            (seconds,),
        )


_REDIS = """
for _, key in ipairs(redis.call('KEYS', ARGV[1] .. ':*')) do
  if redis.call('TYPE', key).ok == 'zset' then
    for _, id in ipairs(redis.call('ZRANGE', key, 0, -1)) do
      redis.call('ZINCRBY', key, ARGV[2], id)
    end
  elseif redis.call('TYPE', key).ok == 'hash' and redis.call('HEXISTS', key, 'expires') == 1 then
    for _, date in ipairs({'created', 'lease_until', 'expires'}) do
      redis.call('HINCRBY', key, date, ARGV[2])
    end
  end
end
"""


def redis(url: str, prefix: str, seconds: float) -> None:
    """The server's own expiry stays where it was: what has expired may still be there."""
    with redis_client.Redis.from_url(url) as client:
        redis_node(client, prefix, seconds)


def redis_node(client: redis_client.Redis, prefix: str, seconds: float) -> None:
    client.eval(_REDIS, 0, prefix, round(-seconds * 1_000_000))


def postgres(url: str, seconds: float) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(
            "UPDATE oncekey_claims SET created = created - passed, expires = expires - passed, "
            "lease_until = lease_until - passed FROM make_interval(secs => %s) AS passed",
            (seconds,),
        )


def mysql(url: str, seconds: float) -> None:
    with mysql_connection(url) as db, db.cursor() as cursor:
        passed = f"INTERVAL {round(seconds * 1_000_000)} MICROSECOND"
        cursor.execute(
            f"UPDATE oncekey_claims SET created = created - {passed}, "
            f"expires = expires - {passed}, lease_until = lease_until - {passed}"
        )


def never(seconds: float) -> None:
    """For tests in which servers take as long as they take: no record is over within them."""
    raise AssertionError(f"{seconds:g} s cannot pass here")
