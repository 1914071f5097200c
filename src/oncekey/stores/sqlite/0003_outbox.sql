-- oldest reader: 1
--
-- Messages that were committed and are not published yet. A row is removed once its message is published.
--
-- `lane` is what keeps messages in order: only the first row of a lane may be published. It stands for topic and key,
-- or for the message alone where it has no key. `due` is a reading of the host's boot clock, in the boot that `boot`
-- stands for: the end of a lease while a worker has the row, the next try after a failure. Both are 0 in a new row.
CREATE TABLE oncekey_outbox (
    n INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL,
    lane BLOB NOT NULL,
    boot INTEGER NOT NULL DEFAULT 0,
    due REAL NOT NULL DEFAULT 0,
    created REAL NOT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    parked INTEGER NOT NULL DEFAULT 0,
    token BLOB,
    topic TEXT NOT NULL,
    key TEXT,
    headers TEXT NOT NULL,
    payload BLOB NOT NULL,
    error TEXT
) STRICT;

CREATE INDEX oncekey_outbox_lanes ON oncekey_outbox (lane, n) WHERE parked = 0;

CREATE INDEX oncekey_outbox_parked ON oncekey_outbox (n) WHERE parked = 1;
