-- oldest reader: 1

-- The request of an attempt that may have to be finished without its client, and the fence of the
-- claim that brought it: under any other fence it is not the request of what runs. An older release
-- takes records over without knowing of it.
--
-- Columns, not a table: they need no further GRANT, vanish with their row, and cost nothing where
-- they are null. A renewal does not write a long value again.
--
-- Adding them takes a moment without any other transaction on the table. Everybody who comes after
-- waits too, so the wait is short: if a long transaction is in the way, migrate again.
SET LOCAL lock_timeout = '2s';
ALTER TABLE oncekey_claims ADD COLUMN request bytea, ADD COLUMN request_fence bigint;
