-- oldest reader: 1
--
-- The request of an attempt that may have to be finished without its client. It belongs to the claim that brought it:
-- the triggers forget it when the record ends, changes its owner or is removed, whichever release does that. A
-- completion pays for one look into a table that is empty where no request is kept.
CREATE TABLE oncekey_requests (
    n INTEGER PRIMARY KEY,
    request BLOB NOT NULL
) STRICT;

CREATE TRIGGER oncekey_requests_ended AFTER UPDATE OF state, fence ON oncekey_claims
WHEN new.state <> 'running' OR new.fence <> old.fence
BEGIN
    DELETE FROM oncekey_requests WHERE n = old.n;
END;

CREATE TRIGGER oncekey_requests_removed AFTER DELETE ON oncekey_claims
BEGIN
    DELETE FROM oncekey_requests WHERE n = old.n;
END;
