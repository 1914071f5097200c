-- oldest reader: 1

-- MySQL and MariaDB commit each of these statements by itself. All of them can be repeated, so that a migration that was
-- cut short is finished by the next.
--
-- Texts are kept as the bytes of their UTF-8: every collation that both servers know takes 'acct' and 'acct ' for one,
-- or letters for others. All times are UTC.

-- A fence has to be greater than those that its own id had. While a record is there it counts for itself; of all that
-- were removed this one row keeps the highest. A new record begins above it.
CREATE TABLE IF NOT EXISTS oncekey_fences (
    one     TINYINT UNSIGNED NOT NULL PRIMARY KEY,
    removed BIGINT UNSIGNED NOT NULL
) ENGINE = InnoDB;
INSERT INTO oncekey_fences (one, removed) VALUES (1, 0) ON DUPLICATE KEY UPDATE one = 1;

-- The sole arbiter of who owns what. The answer and the request stand in the same row: a long value is kept on pages of
-- its own, which a renewal neither reads nor writes, and one UPDATE is then all that a completion takes.
--
-- Every claim and every completion pays for every index, so there are only two besides the primary key: one to sweep by,
-- and one to find lapsed leases by. Listing by tenant is for operators and reads the table.
CREATE TABLE IF NOT EXISTS oncekey_claims (
    id                  VARBINARY(64) NOT NULL PRIMARY KEY,
    token               VARBINARY(64) NOT NULL,
    fence               BIGINT UNSIGNED NOT NULL,
    generation          BIGINT UNSIGNED NOT NULL,   -- the fence with which the record last began anew
    state               ENUM('running', 'completed', 'released', 'unknown') NOT NULL,
    no_effect           BOOLEAN NOT NULL,
    created             DATETIME(6) NOT NULL,
    lease_until         DATETIME(6),                -- null unless running
    expires             DATETIME(6) NOT NULL,
    lease_s             DOUBLE NOT NULL,
    retention_s         DOUBLE NOT NULL,
    replays             BIGINT UNSIGNED NOT NULL DEFAULT 0,
    conflicts           BIGINT UNSIGNED NOT NULL DEFAULT 0,
    fingerprint_version INT NOT NULL,
    schema_version      INT NOT NULL,
    attempt             INT NOT NULL,
    lapses              INT NOT NULL,
    beat                INT NOT NULL,
    status              INT,                        -- null exactly where no answer is kept
    fingerprint         VARBINARY(255) NOT NULL,
    recovery            VARBINARY(255) NOT NULL,
    tenant              BLOB NOT NULL,
    operation           BLOB NOT NULL,
    `key`               BLOB NOT NULL,
    field_digests       MEDIUMBLOB,
    resource_id         MEDIUMBLOB,
    headers             MEDIUMBLOB,
    body                LONGBLOB,                   -- null where only the fact was kept
    request             LONGBLOB,                   -- of an attempt that may be finished without its client
    KEY oncekey_claims_expires (expires),
    KEY oncekey_claims_lease_until (lease_until)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Steps belong to a generation of their record: one that begins anew has none.
CREATE TABLE IF NOT EXISTS oncekey_steps (
    id         VARBINARY(64) NOT NULL,
    generation BIGINT UNSIGNED NOT NULL,
    name       VARBINARY(500) NOT NULL,
    position   INT UNSIGNED NOT NULL,
    digest     MEDIUMBLOB NOT NULL,
    result     LONGBLOB,                            -- null while only the start is marked
    PRIMARY KEY (id, generation, name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
