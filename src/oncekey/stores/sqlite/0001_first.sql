-- oldest reader: 1
--
-- Records are found by id, but kept by `n`, in the order in which they came: what is completed now was begun a
-- moment ago and lies on the same few pages, and a sweep empties whole pages. Answers and steps hang on `n` too.

CREATE TABLE oncekey_schema (
    number INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    oldest_reader INTEGER NOT NULL
) STRICT;

-- One row. New records start above the highest fence that a sweep removed.
CREATE TABLE oncekey_meta (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    fence_floor INTEGER NOT NULL
) STRICT;

INSERT INTO oncekey_meta VALUES (1, 0);

-- `lease_until` is a reading of the host's boot clock and means something only in the boot that `boot` stands for; it
-- is 0 unless the record runs. `created` and `expires` are seconds since 1970. `key` is empty once purged.
CREATE TABLE oncekey_claims (
    n INTEGER PRIMARY KEY,
    id BLOB NOT NULL UNIQUE,
    token BLOB NOT NULL,
    state TEXT NOT NULL DEFAULT 'running',
    fence INTEGER NOT NULL,
    boot INTEGER NOT NULL,
    lease_until REAL NOT NULL,
    expires REAL NOT NULL,
    created REAL NOT NULL,
    attempt INTEGER NOT NULL DEFAULT 1,
    lapses INTEGER NOT NULL DEFAULT 0,
    beat INTEGER NOT NULL DEFAULT 0,
    no_effect INTEGER NOT NULL DEFAULT 0,
    replays INTEGER NOT NULL DEFAULT 0,
    conflicts INTEGER NOT NULL DEFAULT 0,
    lease_s REAL NOT NULL,
    retention_s REAL NOT NULL,
    schema_version INTEGER NOT NULL,
    fingerprint_version INTEGER NOT NULL,
    fingerprint BLOB NOT NULL,
    recovery TEXT NOT NULL,
    tenant TEXT NOT NULL,
    operation TEXT NOT NULL,
    key TEXT NOT NULL,
    field_digests TEXT
) STRICT;

-- Every record is in one of these two, so that a new one costs one entry, and a completed one a second.
CREATE INDEX oncekey_claims_running ON oncekey_claims (boot, lease_until) WHERE state = 'running';

CREATE INDEX oncekey_claims_ended ON oncekey_claims (expires) WHERE state <> 'running';

CREATE INDEX oncekey_claims_purgeable ON oncekey_claims (tenant) WHERE state <> 'running' AND key <> '';

CREATE TABLE oncekey_answers (
    n INTEGER PRIMARY KEY,
    status INTEGER,
    resource_id TEXT,
    headers BLOB,
    body BLOB
) STRICT;

-- Steps of one record in the order of `at`; a step that is replaced keeps its place.
CREATE TABLE oncekey_steps (
    at INTEGER PRIMARY KEY,
    n INTEGER NOT NULL,
    name TEXT NOT NULL,
    digest BLOB NOT NULL,
    result BLOB,
    UNIQUE (n, name)
) STRICT;
