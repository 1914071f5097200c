-- All queries of the store. Each is one statement, and so one transaction and one round trip; it takes
-- as many verbs as its arrays have elements. Nothing depends on the session: no setting outlives its
-- statement, so all of it works through a pooler in transaction mode.
--
-- How a conditional write is decided, under READ COMMITTED:
--   `asked`  are the verbs. None of its rows exists without the row of `bound`, so that `lock_timeout`
--            is set, for this transaction, before any row of a table is touched.
--   `locked` takes the row locks. A row that changed after the statement's snapshot is fetched again
--            in its newest version: the compared row is the locked row, and it cannot change before
--            the commit.
--   `timed`  reads the clock once the locks are taken, not before waiting for them.
--   `judged` compares, `done` writes what fits. A row that does not fit is returned without a fence.
-- In a batch {skip} is SKIP LOCKED: it leaves out locked rows, so that it never waits and cannot
-- deadlock. A lone verb waits for its row.
--
-- The layout says where an answer is stored. Writes look it up: {inline}. Reads look in both places,
-- at most one of which has it. Inline, a claim leaves values null that are as they were at the start;
-- {record} reads them so.
--
-- The claim says where steps and the request are stored: with a `kept_day`, in the partition of that
-- day, which is always the day on which it expires. Without one, steps are in their table and the
-- request is in the claim. A record begins as {by_day} says and stays so, even if the layout changes,
-- until it begins again or is moved. So the claim, which is locked by then, tells where the others are.
--
-- A statement that takes row locks must not find the partition of a day at run time: the server (18)
-- corrupts the data for it when it fetches a changed row again, and then crashes. It does not try if
-- the day is in an array; then it looks into the index of every partition.
--
-- Expiry is stored in tenths of a second: equal entries share space in the index. It is rounded up, so
-- that nothing expires too early, nor before its lease ends.

-- name: insert
-- A replay must write nothing, not even draw a fence: hence the read before the insert, which alone
-- decides. Ids are inserted in order, because an insert waits for a concurrent one of the same id. A
-- row that is neither found nor inserted was committed after the snapshot: the next statement finds
-- it. `zero` is null if the layout leaves out initial values, and `short` says whether it leaves out
-- more. Values that most claims share are not sent either: a column that has no other is null.
WITH bound AS MATERIALIZED (SELECT set_config('lock_timeout', $1, true)),
asked AS MATERIALIZED (
    SELECT
        a.id, a.token, a.tenant, a.operation, a.key, a.fingerprint, a.field_digests, a.request,
        {asked_most},
        coalesce(a.is_uuid, true) AS is_uuid
    FROM bound, unnest(
        $2::bytea[], $3::bytea[], $4::text[], $5::text[], $6::text[], $7::bytea[], $8::int[],
        $9::float8[], $10::float8[], $11::text[], $12::int[], $13::text[], $14::bytea[], $15::bool[]
    ) AS a (
        id, token, tenant, operation, key, fingerprint, fingerprint_version,
        lease_s, retention_s, recovery, schema_version, field_digests, request, is_uuid
    )
),
found AS (
    SELECT {record}
    FROM asked a
    JOIN oncekey_claims c ON c.id = a.id
    LEFT JOIN oncekey_answers r ON r.day = c.answer_day AND r.id = c.id
),
fresh AS MATERIALIZED (
    SELECT
        *,
        CASE WHEN short AND is_uuid THEN key::uuid END AS key_uuid,
        zero = 0 AND {by_day} AS by_day,
        (now + make_interval(secs => lease_s + retention_s + 0.05))::timestamptz(1) AS expires
    FROM (
        SELECT
            a.*,
            nextval('oncekey_fences') AS fence,
            clock_timestamp() AS now,
            CASE WHEN NOT {inline} THEN 0 END AS zero,
            {shorter} AS short
        FROM asked a
        WHERE NOT EXISTS (SELECT FROM oncekey_claims c WHERE c.id = a.id)
        ORDER BY a.id
    ) AS f
),
inserted AS (
    INSERT INTO oncekey_claims (
        id, token, tenant, operation, fingerprint,
        {claimed},
        field_digests, state, fence, generation, attempt, lapses, beat,
        no_effect, replays, conflicts, created, lease_until, expires,
        kept_day,
        request, request_fence
    )
    SELECT
        id, token, tenant, operation, fingerprint,
        {given},
        field_digests, 'running', fence, fence + zero, 1 + zero, zero, zero,
        zero::bool, zero, zero, now, now + make_interval(secs => lease_s), expires,
        CASE WHEN by_day THEN (expires AT TIME ZONE 'UTC')::date END,
        CASE WHEN by_day THEN NULL ELSE request END, CASE WHEN request IS NOT NULL THEN fence END
    FROM fresh
    ON CONFLICT (id) DO NOTHING
    RETURNING id, fence, kept_day
)
{requests}
SELECT * FROM found
UNION ALL
SELECT
    id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, fence,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM inserted

-- name: requests
-- The meaning of {requests} in an insert with any: other inserts need not prepare for it.
, requests AS (
    INSERT INTO oncekey_requests_by_day (day, id, fence, request)
    SELECT i.kept_day, i.id, i.fence, f.request
    FROM inserted i
    JOIN fresh f ON f.id = i.id
    WHERE i.kept_day IS NOT NULL AND f.request IS NOT NULL
)

-- name: complete
WITH bound AS MATERIALIZED (SELECT set_config('lock_timeout', $1, true)),
asked AS MATERIALIZED (
    SELECT a.*
    FROM bound, unnest(
        $2::bytea[], $3::bigint[], $4::bytea[], $5::float8[], $6::text[], $7::int[], $8::bytea[],
        $9::bytea[]
    ) AS a (id, fence, token, retention_s, resource_id, status, headers, body)
),
locked AS MATERIALIZED (
    SELECT
        a.*,
        c.state = 'running' AND c.fence = a.fence AND c.token = a.token AS fits,
        c.kept_day,
        c.request_fence IS NULL AS unrequested
    FROM asked a
    JOIN oncekey_claims c ON c.id = a.id
    FOR UPDATE OF c {skip}
),
timed AS MATERIALIZED (
    SELECT
        *,
        (clock_timestamp() + make_interval(secs => retention_s + 0.05))::timestamptz(1) AS expires,
        {inline} AS inline
    FROM locked
),
done AS (
    UPDATE oncekey_claims c
    SET state = 'completed',
        lease_until = NULL,
        expires = t.expires,
        beat = CASE WHEN c.beat IS NOT NULL OR NOT t.inline THEN coalesce(c.beat, 0) + 1 END,
        no_effect = CASE WHEN NOT t.inline THEN false END,
        resource_id = t.resource_id,
        answer_day = CASE
            WHEN t.status IS NOT NULL AND NOT t.inline THEN (t.expires AT TIME ZONE 'UTC')::date
        END,
        status = CASE WHEN t.inline THEN t.status END,
        headers = CASE WHEN t.inline THEN t.headers END,
        body = CASE WHEN t.inline THEN t.body END,
        kept_day = CASE
            WHEN t.kept_day IS NOT NULL THEN oncekey_carry(
                t.id, t.kept_day, (t.expires AT TIME ZONE 'UTC')::date, true, true, t.unrequested
            )
        END,
        request = NULL
    FROM timed t
    WHERE c.id = t.id AND t.fits
    RETURNING
        c.id, c.fence, c.answer_day, t.status, t.headers, t.body,
        t.status IS NOT NULL AND NOT t.inline AS kept_apart
),
kept AS (
    INSERT INTO oncekey_answers (day, id, status, headers, body)
    SELECT answer_day, id, status, headers, body FROM done WHERE kept_apart
    ON CONFLICT (day, id) DO UPDATE
        SET status = excluded.status, headers = excluded.headers, body = excluded.body
)
SELECT id, fence FROM done
UNION ALL
SELECT id, NULL FROM timed WHERE NOT fits

-- name: renew
WITH bound AS MATERIALIZED (SELECT set_config('lock_timeout', $1, true)),
asked AS MATERIALIZED (
    SELECT a.*
    FROM bound, unnest(
        $2::bytea[], $3::bigint[], $4::bytea[], $5::bool[], $6::float8[], $7::float8[]
    ) AS a (id, fence, token, only_overlong, lease_s, retention_s)
),
locked AS MATERIALIZED (
    SELECT
        a.*,
        c.state = 'running' AND c.fence = a.fence AND c.token = a.token AS owned,
        c.lease_until - make_interval(secs => 1.001 * {lease_s}) AS overlong_until,
        c.kept_day
    FROM asked a
    JOIN oncekey_claims c ON c.id = a.id
    FOR UPDATE OF c {skip}
),
timed AS MATERIALIZED (SELECT *, clock_timestamp() AS now FROM locked),
judged AS MATERIALIZED (
    SELECT
        *,
        owned AND (NOT only_overlong OR overlong_until > now) AS fits,
        (now + make_interval(secs => lease_s + retention_s + 0.05))::timestamptz(1) AS expires
    FROM timed
),
done AS (
    UPDATE oncekey_claims c
    SET lease_until = now + make_interval(secs => j.lease_s),
        expires = j.expires,
        kept_day = CASE
            WHEN j.kept_day IS NOT NULL THEN oncekey_carry(
                j.id, j.kept_day, (j.expires AT TIME ZONE 'UTC')::date, true, true, true
            )
        END,
        beat = coalesce(c.beat, 0) + 1
    FROM judged j
    WHERE c.id = j.id AND j.fits
    RETURNING c.id, c.fence
)
SELECT id, fence FROM done
UNION ALL
SELECT id, NULL FROM judged WHERE NOT fits

-- name: change
-- Every other swap. The last columns are the claim's, null if there is none.
WITH bound AS MATERIALIZED (SELECT set_config('lock_timeout', $1, true)),
asked AS MATERIALIZED (
    SELECT a.*
    FROM bound, unnest(
        $2::bytea[], $3::text[], $4::bigint[], $5::bytea[], $6::text[],
        $7::text[], $8::bool[], $9::float8[], $10::float8[], $11::bytea[],
        $12::bool[], $13::int[], $14::int[], $15::bool[], $16::text[],
        $17::int[], $18::bytea[], $19::bytea[],
        $20::text[], $21::text[], $22::text[], $23::bytea[], $24::int[],
        $25::float8[], $26::float8[], $27::text[], $28::int[], $29::text[], $30::bytea[]
    ) AS a (
        id, state, fence, token, condition,
        next_state, raise_fence, retention_s, lease_s, new_token,
        fresh, attempt, lapses, no_effect, resource_id,
        status, headers, body,
        tenant, operation, key, fingerprint, fingerprint_version,
        claim_lease_s, claim_retention_s, recovery, schema_version, field_digests, request
    )
),
locked AS MATERIALIZED (
    SELECT
        a.*,
        c.state = a.state AND c.fence = a.fence AND c.token = a.token AS owned,
        c.lease_until AS old_lease_until,
        c.expires AS old_expires,
        {lease_s} AS old_lease_s,
        ARRAY[c.answer_day] AS old_answer_days,
        c.kept_day AS old_kept_day,
        c.request_fence IS NULL AS unrequested
    FROM asked a
    JOIN oncekey_claims c ON c.id = a.id
    FOR UPDATE OF c {skip}
),
timed AS MATERIALIZED (
    SELECT
        *,
        clock_timestamp() AS now,
        {inline} AS inline,
        CASE WHEN fresh THEN {by_day} ELSE old_kept_day IS NOT NULL END AS by_day
    FROM locked
),
judged AS MATERIALIZED (
    SELECT
        *,
        NOT fresh AND next_state <> 'completed' AS keeps_answer,
        (
            now + make_interval(secs => coalesce(lease_s, 0) + retention_s + 0.05)
        )::timestamptz(1) AS expires,
        owned AND coalesce(
            CASE condition
                WHEN 'any' THEN true
                WHEN 'lapsed' THEN old_lease_until <= now
                WHEN 'expired' THEN old_expires <= now
                WHEN 'overlong' THEN old_lease_until > now + make_interval(secs => 1.001 * old_lease_s)
            END,
            false
        ) AS fits
    FROM timed
),
fenced AS MATERIALIZED (
    SELECT
        *,
        CASE WHEN raise_fence THEN nextval('oncekey_fences') ELSE fence END AS next_fence,
        CASE WHEN by_day THEN (expires AT TIME ZONE 'UTC')::date END AS kept_day
    FROM judged
    WHERE fits
),
done AS (
    UPDATE oncekey_claims c
    SET state = f.next_state,
        fence = f.next_fence,
        token = coalesce(f.new_token, c.token),
        lease_until = now + make_interval(secs => f.lease_s),
        expires = f.expires,
        beat = {beat} + 1,
        attempt = coalesce(f.attempt, c.attempt),
        lapses = coalesce(f.lapses, c.lapses),
        no_effect = f.no_effect,
        created = CASE WHEN f.fresh THEN now ELSE c.created END,
        generation = CASE WHEN f.fresh THEN f.next_fence ELSE coalesce(c.generation, c.fence) END,
        kept_day = CASE
            WHEN f.old_kept_day IS NULL THEN f.kept_day
            ELSE oncekey_carry(
                f.id, f.old_kept_day, f.kept_day,
                NOT f.fresh,
                NOT (f.state = 'unknown' AND f.next_state = 'released'),
                f.unrequested OR (f.key IS NULL AND f.next_state = 'running')
            )
        END,
        replays = CASE WHEN f.fresh THEN 0 ELSE c.replays END,
        conflicts = CASE WHEN f.fresh THEN 0 ELSE c.conflicts END,
        resource_id = CASE
            WHEN f.next_state = 'completed' THEN f.resource_id
            WHEN NOT f.fresh THEN c.resource_id
        END,
        answer_day = CASE
            WHEN f.keeps_answer THEN c.answer_day
            WHEN f.status IS NOT NULL AND NOT f.inline THEN (f.expires AT TIME ZONE 'UTC')::date
        END,
        status = CASE WHEN f.keeps_answer THEN c.status WHEN f.inline THEN f.status END,
        headers = CASE WHEN f.keeps_answer THEN c.headers WHEN f.inline THEN f.headers END,
        body = CASE WHEN f.keeps_answer THEN c.body WHEN f.inline THEN f.body END,
        tenant = coalesce(f.tenant, c.tenant),
        operation = coalesce(f.operation, c.operation),
        key = coalesce(f.key, c.key),
        key_uuid = CASE WHEN f.key IS NULL THEN c.key_uuid END,
        fingerprint = coalesce(f.fingerprint, c.fingerprint),
        fingerprint_version = coalesce(f.fingerprint_version, c.fingerprint_version),
        lease_s = coalesce(f.claim_lease_s, c.lease_s),
        retention_s = coalesce(f.claim_retention_s, c.retention_s),
        recovery = coalesce(f.recovery, c.recovery),
        schema_version = coalesce(f.schema_version, c.schema_version),
        field_digests = CASE WHEN f.key IS NULL THEN c.field_digests ELSE f.field_digests END,
        request = CASE
            WHEN f.key IS NOT NULL AND NOT f.by_day THEN f.request
            WHEN f.key IS NULL AND f.next_state = 'running' THEN c.request
        END,
        request_fence = CASE WHEN f.key IS NULL THEN c.request_fence ELSE f.next_fence END
    FROM fenced f
    WHERE c.id = f.id
    RETURNING
        c.id, c.fence, c.answer_day, f.status, f.headers, f.body, f.old_answer_days,
        f.status IS NOT NULL AND NOT f.inline AS kept_apart,
        c.kept_day, f.request
),
kept AS (
    INSERT INTO oncekey_answers (day, id, status, headers, body)
    SELECT answer_day, id, status, headers, body FROM done WHERE kept_apart
    ON CONFLICT (day, id) DO UPDATE
        SET status = excluded.status, headers = excluded.headers, body = excluded.body
),
forgotten AS (
    DELETE FROM oncekey_answers r
    USING done d
    WHERE r.day = ANY (d.old_answer_days) AND r.id = d.id AND d.answer_day IS DISTINCT FROM r.day
),
requests AS (
    INSERT INTO oncekey_requests_by_day (day, id, fence, request)
    SELECT kept_day, id, fence, request FROM done WHERE kept_day IS NOT NULL AND request IS NOT NULL
),
-- An operator found out that what was only begun had not happened.
cleared AS (
    DELETE FROM oncekey_steps s
    USING fenced f
    WHERE f.state = 'unknown' AND f.next_state = 'released' AND s.id = f.id AND s.result IS NULL
)
SELECT id, fence FROM done
UNION ALL
SELECT id, NULL FROM judged WHERE NOT fits

-- name: append_step
WITH bound AS MATERIALIZED (SELECT set_config('lock_timeout', $1, true)),
asked AS MATERIALIZED (
    SELECT a.*
    FROM bound, unnest(
        $2::bytea[], $3::bigint[], $4::bytea[], $5::text[], $6::bytea[], $7::bytea[]
    ) AS a (id, fence, token, name, digest, result)
),
locked AS MATERIALIZED (
    SELECT
        a.*,
        coalesce(c.generation, c.fence) AS generation,
        c.kept_day,
        c.state = 'running' AND c.fence = a.fence AND c.token = a.token AS fits
    FROM asked a
    JOIN oncekey_claims c ON c.id = a.id
    FOR UPDATE OF c {skip}
),
kept AS (
    INSERT INTO oncekey_steps (id, generation, name, digest, result)
    SELECT id, generation, name, digest, result FROM locked WHERE fits AND kept_day IS NULL
    ON CONFLICT (id, generation, name) DO UPDATE
        SET digest = excluded.digest, result = coalesce(excluded.result, oncekey_steps.result)
),
kept_by_day AS (
    INSERT INTO oncekey_steps_by_day (day, id, generation, name, position, digest, result)
    SELECT kept_day, id, generation, name, nextval('oncekey_fences'), digest, result
    FROM locked
    WHERE fits AND kept_day IS NOT NULL
    ON CONFLICT (day, id, generation, name) DO UPDATE
        SET digest = excluded.digest, result = coalesce(excluded.result, oncekey_steps_by_day.result)
)
SELECT id, CASE WHEN fits THEN fence END FROM locked

-- name: find
SELECT {record}
FROM oncekey_claims c
LEFT JOIN oncekey_answers r ON r.day = c.answer_day AND r.id = c.id
WHERE c.id = ANY ($1::bytea[])

-- name: peek
SELECT id, state, fence, coalesce(date_part('epoch', lease_until - clock_timestamp()), 0)
FROM oncekey_claims
WHERE id = ANY ($1::bytea[])

-- name: steps
SELECT c.id, s.name, s.digest, s.result
FROM oncekey_claims c
CROSS JOIN LATERAL (
    SELECT name, digest, result, position
    FROM oncekey_steps
    WHERE c.kept_day IS NULL AND id = c.id AND generation = coalesce(c.generation, c.fence)
    UNION ALL
    SELECT name, digest, result, position
    FROM oncekey_steps_by_day
    WHERE day = c.kept_day AND id = c.id AND generation = coalesce(c.generation, c.fence)
) AS s
WHERE c.id = ANY ($1::bytea[])
ORDER BY s.position

-- name: requested
SELECT c.id, coalesce(c.request, r.request)
FROM oncekey_claims c
LEFT JOIN oncekey_requests_by_day r ON r.day = c.kept_day AND r.id = c.id AND r.fence = c.fence
WHERE c.id = ANY ($1::bytea[]) AND c.state = 'running' AND c.request_fence = c.fence

-- name: tally
-- It waits for the rows of a whole batch, so it locks them in order.
WITH bound AS MATERIALIZED (SELECT set_config('lock_timeout', $1, true)),
asked AS MATERIALIZED (
    SELECT a.*
    FROM bound, unnest($2::bytea[], $3::bigint[], $4::bigint[]) AS a (id, replays, conflicts)
),
locked AS MATERIALIZED (
    SELECT a.*
    FROM asked a
    JOIN oncekey_claims c ON c.id = a.id
    ORDER BY c.id
    FOR UPDATE OF c
)
UPDATE oncekey_claims c
SET replays = coalesce(c.replays, 0) + l.replays, conflicts = coalesce(c.conflicts, 0) + l.conflicts
FROM locked l
WHERE c.id = l.id

-- name: due
SELECT id
FROM (
    (
        SELECT id, lease_until AS since
        FROM oncekey_claims
        WHERE state = 'running' AND lease_until <= statement_timestamp()
        ORDER BY lease_until
        LIMIT $1
    )
    UNION ALL
    (
        SELECT id, expires
        FROM oncekey_claims
        WHERE state <> 'running' AND expires <= statement_timestamp()
        ORDER BY expires
        LIMIT $1
    )
) AS due
ORDER BY since, id
LIMIT $1

-- name: abandoned
SELECT id
FROM oncekey_claims
WHERE state = 'running' AND lease_until <= statement_timestamp() AND recovery <> 'rerun'
ORDER BY lease_until, id
LIMIT $1

-- name: sweep
-- Locked rows are left for the next time. A row that changed after the snapshot is compared again when
-- it is locked; of one that was moved after it the snapshot does not show the new place, so it is left
-- for the next time too. Answers and steps in the partition of a day are dropped with that day; a
-- request is removed at once: it says too much to keep it longer than needed.
WITH expired AS MATERIALIZED (
    SELECT c.id, ARRAY[c.answer_day] AS answer_days, ARRAY[c.kept_day] AS kept_days
    FROM oncekey_claims c
    WHERE c.expires <= statement_timestamp() AND (
        c.answer_day IS NULL
        OR c.answer_day = (SELECT s.answer_day FROM oncekey_claims s WHERE s.id = c.id)
    ) AND c.kept_day IS NOT DISTINCT FROM (
        SELECT s.kept_day FROM oncekey_claims s WHERE s.id = c.id
    )
    ORDER BY c.expires
    LIMIT $1
    FOR UPDATE OF c SKIP LOCKED
),
claims AS (DELETE FROM oncekey_claims c USING expired e WHERE c.id = e.id),
answers AS (
    DELETE FROM oncekey_answers r
    USING expired e
    WHERE NOT {partitioned} AND r.day = ANY (e.answer_days) AND r.id = e.id
),
steps AS (DELETE FROM oncekey_steps s USING expired e WHERE s.id = e.id),
requests AS (
    DELETE FROM oncekey_requests_by_day r
    USING expired e
    WHERE r.day = ANY (e.kept_days) AND r.id = e.id
)
SELECT count(*), {partitioned}, {by_day} FROM expired

-- name: scan
SELECT {outline}
FROM oncekey_claims c
LEFT JOIN oncekey_answers r ON r.day = c.answer_day AND r.id = c.id
WHERE c.id > $1 AND ($2::text IS NULL OR c.state = $2) AND ($3::text IS NULL OR c.tenant = $3)
ORDER BY c.id
LIMIT $4

-- name: count
SELECT state, count(*) FROM oncekey_claims GROUP BY state

-- name: purge
-- Unlike a sweep it waits for locked rows: a purge must be complete when it returns. A record that was
-- moved meanwhile is not in the snapshot: it is seen but not chosen, and asked for again.
WITH bound AS MATERIALIZED (SELECT set_config('lock_timeout', $1, true)),
seen AS MATERIALIZED (
    SELECT c.id, c.answer_day, c.kept_day
    FROM bound, oncekey_claims c
    WHERE c.tenant = $2 AND c.state <> 'running' AND c.key IS DISTINCT FROM ''
    ORDER BY c.id
    LIMIT $3
),
chosen AS MATERIALIZED (
    SELECT c.id, ARRAY[c.answer_day] AS answer_days, ARRAY[c.kept_day] AS kept_days
    FROM seen s
    JOIN oncekey_claims c ON c.id = s.id
    WHERE c.state <> 'running' AND c.key IS DISTINCT FROM ''
        AND c.answer_day IS NOT DISTINCT FROM s.answer_day
        AND c.kept_day IS NOT DISTINCT FROM s.kept_day
    ORDER BY c.id
    FOR UPDATE OF c
),
claims AS (
    UPDATE oncekey_claims c
    SET key = '', key_uuid = NULL, field_digests = NULL, resource_id = NULL, request = NULL,
        headers = CASE WHEN c.status IS NOT NULL THEN $4::bytea END, body = NULL
    FROM chosen
    WHERE c.id = chosen.id
),
answers AS (
    UPDATE oncekey_answers r
    SET headers = $4, body = NULL
    FROM chosen
    WHERE r.day = ANY (chosen.answer_days) AND r.id = chosen.id
),
steps AS (UPDATE oncekey_steps s SET result = NULL FROM chosen WHERE s.id = chosen.id),
steps_by_day AS (
    UPDATE oncekey_steps_by_day s
    SET result = NULL
    FROM chosen
    WHERE s.day = ANY (chosen.kept_days) AND s.id = chosen.id
)
SELECT (SELECT count(*) FROM chosen), (SELECT count(*) FROM seen)

-- name: one_migrator
SELECT pg_advisory_xact_lock($1)

-- name: notebook
CREATE TABLE IF NOT EXISTS oncekey_schema (
    number        integer PRIMARY KEY,
    name          text COLLATE "C" NOT NULL,
    oldest_reader integer NOT NULL,
    applied       timestamptz NOT NULL DEFAULT now()
)

-- name: noted
SELECT number FROM oncekey_schema

-- name: note
INSERT INTO oncekey_schema (number, name, oldest_reader) VALUES ($1, $2, $3)

-- name: layout
SELECT layout, (SELECT relkind = 'p' FROM pg_class WHERE oid = 'oncekey_answers'::regclass)
FROM oncekey_schema
WHERE number = 4

-- name: one_mover
-- Until the connection ends.
SELECT pg_try_advisory_lock($1)

-- name: set_layout
-- In one statement: what migration 4 knows of layouts, and what 5 and 6 added. Until these are set,
-- all is stored as the release with only the earlier migrations stores and reads it.
UPDATE oncekey_schema SET layout = $1, oldest_reader = $2 WHERE number IN (4, 5, 6)

-- name: open_transactions
-- In this database, except our own and the server's (vacuum). Any role may ask.
SELECT coalesce(array_agg(l.virtualtransaction), '{}')
FROM pg_locks l
JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'virtualxid' AND l.pid <> pg_backend_pid()
    AND a.datname = current_database() AND a.usesysid IS NOT NULL

-- name: none_open
-- Also none prepared for a two-phase commit, which no longer has its earlier name.
SELECT CASE
    WHEN EXISTS (
        SELECT FROM pg_locks
        WHERE virtualtransaction = ANY ($1)
            OR pid IS NULL AND relation = 'oncekey_claims'::regclass
    ) THEN pg_sleep(0.1) IS NULL
    ELSE true
END

-- name: hold_for_move
-- The first statement of a batch, which is one transaction: lock the next records to move, by id. The
-- next statement has a newer snapshot, which shows all that was committed before they were locked.
WITH bound AS MATERIALIZED (SELECT set_config('lock_timeout', $1, true)),
span AS MATERIALIZED (
    SELECT c.id FROM bound, oncekey_claims c WHERE c.id > $2 ORDER BY c.id LIMIT $3
),
chosen AS MATERIALIZED (
    SELECT c.id
    FROM span s
    JOIN oncekey_claims c ON c.id = s.id
    WHERE CASE
        WHEN {inline} THEN c.answer_day IS NOT NULL OR c.kept_day IS NOT NULL
        ELSE
            c.status IS NOT NULL OR c.generation IS NULL OR {unsaid}
            OR c.kept_day IS NULL AND {by_day} AND (
                c.state <> 'completed' OR EXISTS (SELECT FROM oncekey_steps k WHERE k.id = c.id)
            )
    END
    FOR UPDATE OF c
)
SELECT (SELECT id FROM span ORDER BY id DESC LIMIT 1), ARRAY(SELECT id FROM chosen)

-- name: move_into_claims
-- Answers and requests; and steps into the table without partitions.
WITH chosen AS MATERIALIZED (
    SELECT c.id, c.answer_day, c.kept_day, a.status, a.headers, a.body, r.request
    FROM oncekey_claims c
    LEFT JOIN oncekey_answers a ON a.day = c.answer_day AND a.id = c.id
    LEFT JOIN oncekey_requests_by_day r
        ON r.day = c.kept_day AND r.id = c.id AND r.fence = c.request_fence
    WHERE c.id = ANY ($1::bytea[])
),
claims AS (
    UPDATE oncekey_claims c
    SET answer_day = NULL,
        kept_day = NULL,
        status = coalesce(o.status, c.status),
        headers = coalesce(o.headers, c.headers),
        body = coalesce(o.body, c.body),
        request = coalesce(o.request, c.request),
        generation = nullif(c.generation, c.fence),
        {unsay}
    FROM chosen o
    WHERE c.id = o.id
),
answers AS (
    DELETE FROM oncekey_answers a USING chosen o WHERE a.day = o.answer_day AND a.id = o.id
),
requests AS (
    DELETE FROM oncekey_requests_by_day r USING chosen o WHERE r.day = o.kept_day AND r.id = o.id
),
taken AS (
    DELETE FROM oncekey_steps_by_day s USING chosen o
    WHERE s.day = o.kept_day AND s.id = o.id
    RETURNING s.*
)
INSERT INTO oncekey_steps (id, generation, name, digest, result)
SELECT id, generation, name, digest, result FROM (SELECT * FROM taken ORDER BY position) AS t

-- name: move_out_of_claims
-- Answers; and into days: requests, and steps that are not of an earlier generation.
WITH chosen AS MATERIALIZED (
    SELECT
        c.id, c.status, c.headers, c.body, c.request, c.request_fence,
        coalesce(c.generation, c.fence) AS generation,
        (c.expires AT TIME ZONE 'UTC')::date AS day,
        c.kept_day IS NULL AND {by_day} AS to_days
    FROM oncekey_claims c
    WHERE c.id = ANY ($1::bytea[])
),
claims AS (
    UPDATE oncekey_claims c
    SET answer_day = CASE WHEN o.status IS NOT NULL THEN o.day ELSE c.answer_day END,
        kept_day = CASE WHEN o.to_days THEN o.day ELSE c.kept_day END,
        status = NULL, headers = NULL, body = NULL,
        request = CASE WHEN NOT o.to_days THEN c.request END,
        generation = coalesce(c.generation, c.fence),
        {say}
    FROM chosen o
    WHERE c.id = o.id
),
answers AS (
    INSERT INTO oncekey_answers (day, id, status, headers, body)
    SELECT day, id, status, headers, body FROM chosen WHERE status IS NOT NULL
    ON CONFLICT (day, id) DO UPDATE
        SET status = excluded.status, headers = excluded.headers, body = excluded.body
),
requests AS (
    INSERT INTO oncekey_requests_by_day (day, id, fence, request)
    SELECT day, id, request_fence, request FROM chosen WHERE to_days AND request IS NOT NULL
),
taken AS (
    DELETE FROM oncekey_steps s USING chosen o
    WHERE o.to_days AND s.id = o.id
    RETURNING s.*, o.day, s.generation = o.generation AS is_needed
)
INSERT INTO oncekey_steps_by_day (day, id, generation, name, position, digest, result)
SELECT day, id, generation, name, nextval('oncekey_fences'), digest, result
FROM (SELECT * FROM taken WHERE is_needed ORDER BY position) AS t

-- name: turn_days
SELECT oncekey_turn_days($1)

-- name: turn_days_of_answers
-- The function of migration 4, which knows only answers by day.
SELECT oncekey_turn_days()

-- name: turns_days
SELECT to_regprocedure('oncekey_turn_days(text)') IS NOT NULL
