-- oldest reader: 1

-- Messages that were committed and are not published yet. A row is removed once its message is published, so the table
-- is as long as the backlog, and is vacuumed early.
--
-- `lane` is what keeps messages in order: only the first row of a lane may be published. It stands for topic and key,
-- or for the message alone where it has no key. `due` says from when on a worker may take the row: the end of a lease
-- while somebody has it, the next try after a failure. No index holds it, so that taking a row is a "heap only" update.
CREATE TABLE oncekey_outbox (
    n        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    due      timestamptz NOT NULL DEFAULT '-infinity',
    created  timestamptz NOT NULL DEFAULT clock_timestamp(),
    id       uuid NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    parked   boolean NOT NULL DEFAULT false,
    lane     bytea NOT NULL,
    token    bytea,                         -- of the worker that took it last
    topic    text COLLATE "C" NOT NULL,
    key      text COLLATE "C",
    headers  text COLLATE "C" NOT NULL,     -- a JSON object
    payload  bytea NOT NULL,
    error    text                           -- why it was not published when last tried
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.02);
CREATE INDEX oncekey_outbox_lanes ON oncekey_outbox (lane, n) WHERE NOT parked;
CREATE INDEX oncekey_outbox_parked ON oncekey_outbox (n) WHERE parked;
