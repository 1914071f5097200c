-- oldest reader: 1

-- Messages that were committed and are not published yet. A row is removed once its message is published, so the table
-- is as long as the backlog.
--
-- `lane` is what keeps messages in order: only the first row of a lane may be published. It stands for topic and key,
-- or for the message alone where it has no key. `due` says from when on a worker may take the row: the end of a lease
-- while somebody has it, the next try after a failure. No index holds it: taking a row changes that row alone.
CREATE TABLE IF NOT EXISTS oncekey_outbox (
    n             BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    id            VARBINARY(36) NOT NULL,
    due           DATETIME(6) NOT NULL DEFAULT '2000-01-01 00:00:00',
    created       DATETIME(6) NOT NULL,
    attempts      INT UNSIGNED NOT NULL DEFAULT 0,
    parked        BOOLEAN NOT NULL DEFAULT 0,
    lane          VARBINARY(64) NOT NULL,
    token         VARBINARY(64),            -- of the worker that took it last
    topic         BLOB NOT NULL,
    `key`         BLOB,
    headers       MEDIUMBLOB NOT NULL,      -- a JSON object
    payload       LONGBLOB NOT NULL,
    payload_bytes INT UNSIGNED NOT NULL,    -- so that its length is known without reading it
    error         BLOB,                     -- why it was not published when last tried
    KEY oncekey_outbox_lanes (parked, lane, n)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;
