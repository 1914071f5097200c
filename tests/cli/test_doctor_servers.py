"""Every setting that is unsafe, on a real server that has it: doctor and start-up agree."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import psycopg
import pytest
import redis

from oncekey.stores.redis.checks import acl_rule
from oncekey.stores.urls import open_store
from tests.cli.conftest import Oncekey, Seed
from tests.cli.doctor_kit import Doctor
from tests.servers import Postgres, Redis, start_mariadb, start_postgres, start_redis
from tests.servers.mariadb import mysql_connection
from tests.servers.ministack import table_url
from tests.servers.process import free_port
from tests.servers.redis_cluster import start_redis_cluster
from tests.servers.redis_sentinel import start_watched_redis
from tests.servers.skipping import or_skip
from tests.stores.dynamodb import kit
from tests.stores.sealed.kit import SECRET

pytestmark = pytest.mark.slow


@pytest.fixture
def doctor(oncekey: Oncekey) -> Doctor:
    return Doctor(oncekey)


def fine(doctor: Doctor, url: str, *but: str) -> None:
    """Nothing is wrong, but for what is named."""
    found = doctor.findings(url)
    assert {what for what, each in found.items() if each["level"] != "fine"} <= set(but)


# -------------------------------------------------------------------------------------- PostgreSQL


@pytest.fixture(scope="module")
def safe_postgres() -> Iterator[Postgres]:
    with or_skip(), start_postgres(durable=True) as server:
        yield server


@pytest.fixture
def pg(safe_postgres: Postgres, oncekey: Oncekey) -> Iterator[Any]:
    """An administrator of a server that syncs, on which the tables are made."""
    oncekey("migrate", safe_postgres.url)
    with psycopg.connect(safe_postgres.url, autocommit=True) as admin:
        yield admin


def test_postgres(doctor: Doctor, pg: Any, safe_postgres: Postgres) -> None:
    fine(doctor, safe_postgres.url, "privileges")
    found = doctor.findings(safe_postgres.url)
    assert found["durability"]["seen"] == "fsync = on, synchronous_commit = on"
    assert found["role"]["seen"] == "primary, read and write"
    assert found["isolation"]["seen"] == "read committed"
    assert "tables and indexes" in found["size"]["seen"]
    assert "give or take" in found["clock"]["seen"]
    assert found["privileges"]["seen"] == "this role is a superuser"
    assert found["layout"]["seen"] == "answers inline"


def test_behind_a_cache_the_truth_is_looked_at(
    doctor: Doctor, pg: Any, safe_postgres: Postgres, redis_url: str
) -> None:
    tiered = f"tiered+{safe_postgres.url}?cache={quote(redis_url)}"
    found = doctor.findings(tiered)
    assert found["durability"]["seen"].startswith("fsync = on")
    assert found["cache"]["level"] == "fine"


@pytest.mark.parametrize("secrets", ["", SECRET])
def test_a_cache_that_does_not_answer(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, redis_url: str, secrets: str
) -> None:
    """It is no danger: an application starts, and purges of it are refused."""
    monkeypatch.setenv("ONCEKEY_SECRETS", secrets)
    wrong = f"redis://:wrong@{redis_url.rpartition('@')[2]}"
    for cache, seen in ((f"redis://127.0.0.1:{free_port()}", "cannot connect"), (wrong, "invalid")):
        url = f"tiered+sqlite:///{tmp_path}/keys.db?cache={cache}"
        doctor.advises(url, "cache", seen)


def test_postgres_that_does_not_sync(doctor: Doctor, oncekey: Oncekey, postgres_url: str) -> None:
    """The server that all tests share is one."""
    oncekey("migrate", postgres_url)
    with psycopg.connect(postgres_url) as db:
        if db.execute("SHOW fsync").fetchone() != ("off",):
            pytest.skip("the server that is given is a safe one")
    doctor.refuses(postgres_url, "durability", "fsync = off", "unsafe-durability")
    found = doctor.findings(f"{postgres_url}?allow=unsafe-durability")
    assert found["torn pages"]["seen"] == "full_page_writes = off"


def test_postgres_whose_commits_do_not_wait(
    doctor: Doctor, pg: Any, safe_postgres: Postgres
) -> None:
    pg.execute("ALTER ROLE postgres SET synchronous_commit = off")
    try:
        seen = "synchronous_commit = off"
        doctor.refuses(safe_postgres.url, "durability", seen, "unsafe-durability")
    finally:
        pg.execute("ALTER ROLE postgres RESET synchronous_commit")


def test_postgres_with_a_table_that_a_crash_empties(
    doctor: Doctor, pg: Any, safe_postgres: Postgres
) -> None:
    pg.execute("ALTER TABLE oncekey_steps SET UNLOGGED")
    try:
        seen = "unlogged: oncekey_steps"
        doctor.refuses(safe_postgres.url, "durability", seen, "unsafe-durability")
    finally:
        pg.execute("ALTER TABLE oncekey_steps SET LOGGED")


def test_postgres_under_another_isolation(doctor: Doctor, pg: Any, safe_postgres: Postgres) -> None:
    """Behind a pooler sessions are not ours to set."""
    options = quote("-c default_transaction_isolation=serializable")
    url = f"{safe_postgres.url}?pgbouncer=true&options={options}"
    doctor.refuses(url, "isolation", "serializable")


def test_postgres_that_is_read_only(doctor: Doctor, pg: Any, safe_postgres: Postgres) -> None:
    options = quote("-c default_transaction_read_only=on")
    doctor.refuses(f"{safe_postgres.url}?options={options}", "role", "read-only for this role")


def test_a_role_that_may_not_even_look(
    doctor: Doctor, oncekey: Oncekey, pg: Any, safe_postgres: Postgres
) -> None:
    """The tables are there: to migrate would not help."""
    pg.execute("CREATE ROLE stranger LOGIN PASSWORD 'strange'")
    try:
        url = f"postgresql://stranger:strange@127.0.0.1:{safe_postgres.port}/postgres"
        found = doctor.findings(url, code=1)
        assert found["schema"]["seen"].startswith("not looked at")
        assert "SELECT on oncekey_schema" in found["privileges"]["seen"]
        assert "to migrate, it must own them" in oncekey("migrate", url).err
    finally:
        pg.execute("DROP ROLE stranger")


def test_a_role_that_lacks_privileges(doctor: Doctor, pg: Any, safe_postgres: Postgres) -> None:
    pg.execute("CREATE ROLE reader LOGIN PASSWORD 'read'")
    try:
        pg.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
        pg.execute("GRANT INSERT, UPDATE ON oncekey_claims, oncekey_answers TO reader")
        url = f"postgresql://reader:read@127.0.0.1:{safe_postgres.port}/postgres"
        found = doctor.findings(url, code=1)["privileges"]
        assert "DELETE on oncekey_claims" in found["seen"]
        assert "INSERT on oncekey_claims" not in found["seen"]
        assert "USAGE on SEQUENCE oncekey_fences" in found["seen"]
        for statement in found["do"].replace("<role>", "reader").split("; "):
            pg.execute(statement)
        assert doctor.findings(url)["privileges"]["seen"] == "all that is needed"
    finally:
        pg.execute("DROP OWNED BY reader")
        pg.execute("DROP ROLE reader")


def test_postgres_without_tables(doctor: Doctor, pg: Any, safe_postgres: Postgres) -> None:
    pg.execute("CREATE DATABASE empty")
    url = urlsplit(safe_postgres.url)._replace(path="/empty").geturl()
    found = doctor.findings(url, code=1)["schema"]
    assert found["seen"] == "no oncekey tables"
    assert "oncekey migrate postgresql://postgres:***@" in found["do"]


def test_a_transaction_that_stays_open(
    doctor: Doctor, pg: Any, safe_postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oncekey.stores.postgres.checks.LONG_TRANSACTION_S", 0.0)
    with psycopg.connect(safe_postgres.url) as other:
        other.execute("SELECT 1")
        doctor.advises(safe_postgres.url, "vacuum", "a transaction has been open for")


def test_a_standby(doctor: Doctor, safe_postgres: Postgres, oncekey: Oncekey) -> None:
    oncekey("migrate", safe_postgres.url)
    safe_postgres.stop()
    signal = safe_postgres.write("data/standby.signal", "")
    safe_postgres.restart()
    try:
        doctor.refuses(safe_postgres.url, "role", "a standby")
    finally:
        safe_postgres.stop()
        signal.unlink()
        safe_postgres.restart()


# ---------------------------------------------------------------------------------- MySQL, MariaDB


@pytest.fixture(scope="module")
def safe_mariadb() -> Iterator[Any]:
    logged = {"log-bin": "log", "sync-binlog": "1"}
    with or_skip(), start_mariadb(durable=True, settings=logged) as server:
        yield server


@pytest.fixture
def maria(safe_mariadb: Any, oncekey: Oncekey) -> Iterator[Any]:
    oncekey("migrate", safe_mariadb.url)
    with mysql_connection(safe_mariadb.url) as admin, admin.cursor() as cursor:
        yield cursor


def test_mariadb(doctor: Doctor, maria: Any, safe_mariadb: Any) -> None:
    fine(doctor, safe_mariadb.url)
    found = doctor.findings(safe_mariadb.url)
    seen = "innodb_flush_log_at_trx_commit = 1, sync_binlog = 1"
    assert found["durability"]["seen"] == seen
    assert "give or take" in found["clock"]["seen"]
    assert found["privileges"]["seen"] == "all that is needed"


def test_mariadb_that_takes_small_packets(doctor: Doctor, maria: Any, safe_mariadb: Any) -> None:
    maria.execute("SET GLOBAL max_allowed_packet = 1048576")
    try:
        seen = "max_allowed_packet = 1,048,576"
        doctor.refuses(safe_mariadb.url, "packets", seen, "small-packets")
    finally:
        maria.execute("SET GLOBAL max_allowed_packet = 16777216")


@pytest.mark.parametrize(
    ("setting", "unsafe", "safe"),
    [
        ("innodb_flush_log_at_trx_commit", 0, 1),
        ("innodb_flush_log_at_trx_commit", 2, 1),
        ("sync_binlog", 0, 1),
    ],
)
def test_mariadb_that_may_forget(
    doctor: Doctor, maria: Any, safe_mariadb: Any, setting: str, unsafe: int, safe: int
) -> None:
    maria.execute(f"SET GLOBAL {setting} = {unsafe}")
    try:
        seen = f"{setting} = {unsafe}"
        doctor.refuses(safe_mariadb.url, "durability", seen, "unsafe-durability")
    finally:
        maria.execute(f"SET GLOBAL {setting} = {safe}")


def test_mariadb_that_is_read_only(doctor: Doctor, maria: Any, safe_mariadb: Any) -> None:
    maria.execute("SET GLOBAL read_only = 1")
    try:
        doctor.refuses(safe_mariadb.url, "role", "read_only = 1")
    finally:
        maria.execute("SET GLOBAL read_only = 0")


def test_mariadb_under_another_isolation(doctor: Doctor, maria: Any, safe_mariadb: Any) -> None:
    """It does not matter: every session of ours sets its own."""
    maria.execute("SET GLOBAL TRANSACTION ISOLATION LEVEL SERIALIZABLE")
    try:
        found = doctor.findings(safe_mariadb.url)["isolation"]
        assert found["seen"] == "READ COMMITTED in our sessions (the server's: SERIALIZABLE)"
        assert found["level"] == "fine"
    finally:
        maria.execute("SET GLOBAL TRANSACTION ISOLATION LEVEL REPEATABLE READ")


def test_a_table_without_transactions(doctor: Doctor, maria: Any, safe_mariadb: Any) -> None:
    maria.execute("ALTER TABLE oncekey_steps ENGINE = MyISAM")
    try:
        doctor.refuses(safe_mariadb.url, "engine", "oncekey_steps in MyISAM")
    finally:
        maria.execute("ALTER TABLE oncekey_steps ENGINE = InnoDB")


def test_a_user_that_lacks_privileges(doctor: Doctor, maria: Any, safe_mariadb: Any) -> None:
    maria.execute("CREATE OR REPLACE USER writer@'127.0.0.1' IDENTIFIED BY 'write'")
    maria.execute("GRANT SELECT, INSERT ON oncekey.* TO writer@'127.0.0.1'")
    url = f"mariadb://writer:write@127.0.0.1:{safe_mariadb.port}/oncekey"
    found = doctor.findings(url, code=1)["privileges"]
    assert found["seen"] == "missing: UPDATE, DELETE"
    assert found["do"] == "GRANT UPDATE, DELETE ON <database>.* TO <user>"


def test_a_user_that_may_not_even_look(doctor: Doctor, maria: Any, safe_mariadb: Any) -> None:
    """The tables are there: to migrate would not help."""
    maria.execute("CREATE OR REPLACE USER stranger@'127.0.0.1' IDENTIFIED BY 'strange'")
    maria.execute("GRANT CREATE TEMPORARY TABLES ON oncekey.* TO stranger@'127.0.0.1'")
    url = f"mariadb://stranger:strange@127.0.0.1:{safe_mariadb.port}/oncekey"
    found = doctor.findings(url, code=1)
    assert found["schema"]["seen"].startswith("not looked at")
    assert found["privileges"]["seen"] == "missing: SELECT, INSERT, UPDATE, DELETE"
    for table in ("claims", "steps", "schema"):
        maria.execute(f"GRANT ALL ON oncekey.oncekey_{table} TO stranger@'127.0.0.1'")
    assert doctor.findings(url, code=1)["privileges"]["seen"] == "missing: SELECT, UPDATE"
    maria.execute("GRANT SELECT, UPDATE ON oncekey.oncekey_fences TO stranger@'127.0.0.1'")
    assert doctor.findings(url)["privileges"]["seen"] == "all that is needed"


def test_mariadb_without_tables(doctor: Doctor, maria: Any, safe_mariadb: Any) -> None:
    maria.execute("CREATE DATABASE IF NOT EXISTS empty")
    found = doctor.findings(safe_mariadb.url.replace("/oncekey", "/empty"), code=1)
    assert found["schema"]["seen"] == "no oncekey tables"


# ------------------------------------------------------------------------------------------- Redis


@pytest.fixture(scope="module")
def safe_redis() -> Iterator[Redis]:
    with or_skip(), start_redis(durable=True, settings={"maxmemory": "100mb"}) as server:
        yield server


@pytest.fixture
def admin(safe_redis: Redis) -> Iterator[Any]:
    with redis.Redis.from_url(safe_redis.url) as client:
        yield client


@contextlib.contextmanager
def set_config(admin: Any, name: str, value: str) -> Iterator[None]:
    before = admin.config_get(name)[name]
    admin.config_set(name, value)
    yield
    admin.config_set(name, before)


def test_redis(doctor: Doctor, safe_redis: Redis) -> None:
    fine(doctor, safe_redis.url)
    found = doctor.findings(safe_redis.url)
    assert found["durability"]["seen"] == "appendonly yes, appendfsync always"
    assert found["eviction"]["seen"] == "maxmemory-policy noeviction"
    assert found["privileges"]["seen"] == "all that is needed"
    assert "give or take" in found["clock"]["seen"]


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_redis_that_evicts(doctor: Doctor, safe_redis: Redis, admin: Any, policy: str) -> None:
    with set_config(admin, "maxmemory-policy", policy):
        doctor.refuses(safe_redis.url, "eviction", f"maxmemory-policy {policy}", "eviction")


def test_redis_that_keeps_no_file(doctor: Doctor, safe_redis: Redis, admin: Any) -> None:
    with set_config(admin, "appendonly", "no"):
        doctor.refuses(safe_redis.url, "durability", "appendonly no", "unsafe-durability")


@pytest.mark.parametrize(
    ("setting", "value", "what", "seen"),
    [
        ("appendfsync", "everysec", "durability", "appendfsync everysec"),
        ("no-appendfsync-on-rewrite", "yes", "durability", "no-appendfsync-on-rewrite yes"),
        ("maxmemory", "0", "memory", "maxmemory 0"),
    ],
)
def test_redis_that_could_be_safer(
    doctor: Doctor, safe_redis: Redis, admin: Any, setting: str, value: str, what: str, seen: str
) -> None:
    with set_config(admin, setting, value):
        doctor.advises(safe_redis.url, what, seen)


def test_a_replica_and_its_primary(doctor: Doctor, safe_redis: Redis) -> None:
    follow = {"replicaof": f"127.0.0.1 {safe_redis.port}", "masterauth": safe_redis.password}
    with start_redis(settings=follow) as replica:
        doctor.refuses(replica.url, "role", "a replica")
        assert f"127.0.0.1:{safe_redis.port}" in doctor.findings(replica.url, 1)["role"]["do"]
        with redis.Redis.from_url(safe_redis.url) as primary:
            primary.execute_command("WAIT", 1, 20_000)  # until it is connected
        doctor.advises(safe_redis.url, "replication", "replicas: 1, none is waited for")
        found = doctor.findings(f"{safe_redis.url}?wait_replicas=1")["replication"]
        assert found["level"] == "fine"


def test_a_user_of_redis_that_lacks_permission(
    doctor: Doctor, safe_redis: Redis, admin: Any
) -> None:
    admin.execute_command(f"ACL SETUSER app on >pw {acl_rule('oncekey')} +acl -unlink")
    url = f"redis://app:pw@127.0.0.1:{safe_redis.port}/0"
    found = doctor.findings(url, code=1)["privileges"]
    assert "'unlink'" in found["seen"]
    admin.execute_command("ACL SETUSER app +unlink")
    assert doctor.findings(url)["privileges"]["seen"] == "all that is needed"
    admin.execute_command("ACL SETUSER app -acl -info")
    found = doctor.findings(url)
    assert found["access"]["seen"] == "INFO is not allowed"


def test_every_node_of_a_cluster(doctor: Doctor) -> None:
    with start_redis_cluster(3, 0) as cluster:
        fine(doctor, cluster.url, *_at_each(cluster, "durability"), *_at_each(cluster, "memory"))
        node = cluster.nodes[1]
        with redis.Redis.from_url(node.url) as client:
            client.config_set("maxmemory-policy", "allkeys-lru")
        what = f"eviction of 127.0.0.1:{node.port}"
        doctor.refuses(cluster.url, what, "allkeys-lru", "eviction")
        ran = doctor.oncekey("doctor", node.url)
        assert (ran.code, ran.out) == (2, "")
        assert "write redis+cluster:// instead" in ran.err


def test_the_primary_that_a_sentinel_names(doctor: Doctor) -> None:
    with start_watched_redis() as watched:
        fine(doctor, watched.url, "durability", "memory", "replication")
        with watched.client(watched.first) as client:
            client.config_set("maxmemory-policy", "volatile-lru")
        doctor.refuses(watched.url, "eviction", "volatile-lru", "eviction")


def _at_each(cluster: Any, what: str) -> list[str]:
    return [f"{what} of 127.0.0.1:{node.port}" for node in cluster.nodes]


def test_records_in_redis_are_sampled(doctor: Doctor, safe_redis: Redis) -> None:
    url = f"{safe_redis.url}?prefix=sampled"
    seed = Seed(open_store(url))
    for number in range(12):
        seed.completed(f"order-{number}")
    seed.unknown("doubt")
    seed.close()
    found = doctor.findings(url)
    assert found["records"]["seen"] == "13: 0 running, 12 completed, 0 released, 1 unknown"
    assert found["unknown"]["level"] == "advice"


# ---------------------------------------------------------------------------------------- DynamoDB


def test_dynamodb(doctor: Doctor, dynamodb_endpoint: str) -> None:
    with kit.table(dynamodb_endpoint) as url:
        seed = Seed(open_store(url))
        seed.completed("order-1")
        seed.close()
        fine(doctor, url, "durability", "backups")
        found = doctor.findings(url)
        assert found["records"]["seen"] == "1: 0 running, 1 completed, 0 released, 0 unknown"
        assert found["capacity"]["seen"] == "BillingMode PAY_PER_REQUEST"
        assert found["time to live"]["seen"] == "ENABLED, by ttl"
        assert "give or take" in found["clock"]["seen"]
        assert found["privileges"]["seen"].endswith("are allowed")
        assert found["records"] == doctor.findings(url)["records"]  # the probes wrote nothing
        kit.client(url).update_time_to_live(
            TableName=kit.name_of(url),
            TimeToLiveSpecification={"Enabled": False, "AttributeName": "ttl"},
        )
        doctor.advises(url, "time to live", "DISABLED")


def test_dynamodb_without_a_table(doctor: Doctor, dynamodb_endpoint: str) -> None:
    found = doctor.findings(table_url(dynamodb_endpoint, "oncekey-none"), code=1)["schema"]
    assert "oncekey migrate dynamodb://oncekey-none" in found["do"]
