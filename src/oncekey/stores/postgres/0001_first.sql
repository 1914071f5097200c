-- oldest reader: 1

-- All fences come from here, for new records and for raised fences alike. A sequence belongs to no
-- snapshot and is never rolled back, so no fence comes twice, whatever was swept in between. Not
-- cached: a session with a reserve would hand out a low number after another's higher one.
CREATE SEQUENCE oncekey_fences AS bigint NO CYCLE CACHE 1;

-- The narrow table, and the sole arbiter of who owns what. It stays unpartitioned: only then does
-- its primary key know every id.
--
-- Every claim and every completion pays for every index, so there are only two besides the primary
-- key: one to sweep by, and one to find lapsed leases by, which holds only what runs. Listing by
-- tenant is for operators and reads the table. Each renewal and completion moves an indexed
-- deadline, so none of their updates is "heap only", and a lower fillfactor gains little. Each also
-- leaves a dead row, which whoever looks for the oldest deadline passes over until it is vacuumed:
-- hence the early vacuum.
CREATE TABLE oncekey_claims (
    fence               bigint NOT NULL,
    generation          bigint NOT NULL,    -- the fence with which the record last began anew
    created             timestamptz NOT NULL,
    lease_until         timestamptz,        -- null unless running
    expires             timestamptz NOT NULL,
    lease_s             float8 NOT NULL,
    retention_s         float8 NOT NULL,
    replays             bigint NOT NULL DEFAULT 0,
    conflicts           bigint NOT NULL DEFAULT 0,
    fingerprint_version integer NOT NULL,
    schema_version      integer NOT NULL,
    attempt             integer NOT NULL,
    lapses              integer NOT NULL,
    beat                integer NOT NULL,
    answer_day          date,               -- where the answer is kept, if one is
    no_effect           boolean NOT NULL,
    id                  bytea PRIMARY KEY,
    token               bytea NOT NULL,
    fingerprint         bytea NOT NULL,
    state               text COLLATE "C" NOT NULL,
    recovery            text COLLATE "C" NOT NULL,
    tenant              text COLLATE "C" NOT NULL,
    operation           text COLLATE "C" NOT NULL,
    key                 text COLLATE "C" NOT NULL,
    field_digests       text COLLATE "C",
    resource_id         text COLLATE "C",
    CHECK (state IN ('running', 'completed', 'released', 'unknown')),
    CHECK ((state = 'running') = (lease_until IS NOT NULL))
) WITH (autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX oncekey_claims_expires ON oncekey_claims (expires);
CREATE INDEX oncekey_claims_lease_until ON oncekey_claims (lease_until) WHERE state = 'running';

-- Answers by the day (UTC) on which they expire, so that the table can later be partitioned by it
-- and a whole day be dropped at once. Bodies are compressed, as the server does from 2 KB on: keeping
-- them as they are is faster by a quarter to write, and takes three times the room.
CREATE TABLE oncekey_answers (
    day     date NOT NULL,
    id      bytea NOT NULL,
    status  integer NOT NULL,
    headers bytea NOT NULL,
    body    bytea,                          -- null where only the fact was kept
    PRIMARY KEY (day, id)
);

-- Steps belong to a generation of their record. A record that begins anew has none, even if one of
-- its last owner's is committed at that moment and no snapshot shows it.
CREATE TABLE oncekey_steps (
    id         bytea NOT NULL,
    generation bigint NOT NULL,
    name       text COLLATE "C" NOT NULL,
    position   bigint GENERATED ALWAYS AS IDENTITY,
    digest     bytea NOT NULL,
    result     bytea,                       -- null while only the start is marked
    PRIMARY KEY (id, generation, name)
);
