-- By the owner, and where the tables are: until the transaction ends, and for good in the function.
-- Unless it is named, a schema of temporary tables comes first, and anybody can make one of those.
DO $$
DECLARE
    place record;
BEGIN
    SELECT relnamespace::regnamespace AS schema, relowner::regrole AS owner INTO place
    FROM pg_class WHERE oid = 'oncekey_answers'::regclass;
    PERFORM set_config('search_path', format('%s, pg_temp', place.schema), true);
    EXECUTE format('SET LOCAL ROLE %s', place.owner);
END
$$;

-- Makes the parts of coming days and drops those of days that are over, of answers, steps or
-- requests; how many it dropped. It is run by whoever sweeps, with the rights of the owner, and does
-- nothing that could hurt: whatever is in its way for a moment makes it leave the rest for the next
-- time. What takes long comes before what others have to wait for.
--
-- Everything is kept under the day on which its claim expires. So a day of which no claim is left,
-- because all that expired until its end were swept, is one that nothing of any claim is in.
CREATE OR REPLACE FUNCTION oncekey_turn_days(kept text) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '200ms'
AS $$
DECLARE
    days_max CONSTANT integer := 100;
    whole    text := 'oncekey_' || kept;
    other    text := 'oncekey_' || kept || '_other';
    said_by  text := CASE kept WHEN 'answers' THEN 'answer_day' ELSE 'kept_day' END;
    today    date := (clock_timestamp() AT TIME ZONE 'UTC')::date;
    turning  date;
    part     text;
    is_there boolean;
    dropped  integer := 0;
BEGIN
    IF kept NOT IN ('answers', 'steps_by_day', 'requests_by_day') THEN
        RAISE EXCEPTION 'nothing of that name is kept by day';
    END IF;
    IF NOT pg_try_advisory_xact_lock(31360989905909114) THEN
        RETURN 0;
    END IF;
    -- For days that have no part: nothing is refused because a part was not made in time.
    IF to_regclass(other) IS NULL THEN
        EXECUTE format('CREATE TABLE %I PARTITION OF %I DEFAULT', other, whole);
    END IF;
    EXECUTE format(
        'DELETE FROM %1$I WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM %1$I o
            WHERE day < $1
                AND NOT EXISTS (SELECT FROM oncekey_claims c WHERE c.id = o.id AND c.%2$I = o.day)
            LIMIT 10000
        ))',
        other, said_by
    ) USING today;
    BEGIN
        -- Every day on which something expires, and the two after it, which come to be such days.
        FOR turning IN
            WITH RECURSIVE occurring (day, number) AS (
                SELECT today, 1
                UNION ALL
                SELECT (
                    SELECT (c.expires AT TIME ZONE 'UTC')::date
                    FROM oncekey_claims c
                    WHERE c.expires >= (o.day + 1)::timestamp AT TIME ZONE 'UTC'
                    ORDER BY c.expires
                    LIMIT 1
                ), number + 1
                FROM occurring o
                WHERE o.day IS NOT NULL AND number < days_max
            )
            SELECT DISTINCT day + ahead FROM occurring, generate_series(0, 2) AS ahead
            WHERE day IS NOT NULL
            ORDER BY 1
            LIMIT days_max
        LOOP
            part := whole || to_char(turning, '"_"YYYYMMDD');
            CONTINUE WHEN to_regclass(part) IS NOT NULL;
            EXECUTE format('SELECT EXISTS (SELECT FROM %I WHERE day = $1)', other)
                INTO is_there USING turning;
            CONTINUE WHEN is_there;
            -- Judged again once it is locked: nobody is about to keep something of that day there.
            EXECUTE format('LOCK TABLE %I IN ACCESS EXCLUSIVE MODE', other);
            EXECUTE format('SELECT EXISTS (SELECT FROM %I WHERE day = $1)', other)
                INTO is_there USING turning;
            CONTINUE WHEN is_there;
            EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL)', part, whole);
            EXECUTE format(
                'ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
                whole, part, to_char(turning, 'YYYY-MM-DD'), to_char(turning + 1, 'YYYY-MM-DD')
            );
        END LOOP;
    EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
        NULL;
    END;
    BEGIN
        FOR part IN
            SELECT c.relname FROM pg_inherits i
            JOIN pg_class c ON c.oid = i.inhrelid
            WHERE i.inhparent = whole::regclass
                AND c.relname ~ format('^%s_[0-9]{8}$', whole)
                AND right(c.relname, 8) < to_char(today, 'YYYYMMDD')
            ORDER BY 1
        LOOP
            turning := to_date(right(part, 8), 'YYYYMMDD') + 1;
            EXIT WHEN EXISTS (
                SELECT FROM oncekey_claims WHERE expires < turning::timestamp AT TIME ZONE 'UTC'
            );
            -- Likewise.
            EXECUTE format('LOCK TABLE %I, %I IN ACCESS EXCLUSIVE MODE', whole, part);
            EXIT WHEN EXISTS (
                SELECT FROM oncekey_claims WHERE expires < turning::timestamp AT TIME ZONE 'UTC'
            );
            EXECUTE format('DROP TABLE %I', part);
            dropped := dropped + 1;
        END LOOP;
    EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
        dropped := 0;
    END;
    RETURN dropped;
END
$$;

-- Whoever may sweep may turn days, also where a function is not everybody's by default.
DO $$
DECLARE
    permission record;
BEGIN
    FOR permission IN
        SELECT a.grantee FROM pg_class c, aclexplode(c.relacl) AS a
        WHERE c.oid = 'oncekey_answers'::regclass AND a.privilege_type = 'DELETE'
    LOOP
        EXECUTE format(
            'GRANT EXECUTE ON FUNCTION oncekey_turn_days(text) TO %s',
            CASE permission.grantee WHEN 0 THEN 'PUBLIC' ELSE permission.grantee::regrole::text END
        );
    END LOOP;
END
$$;
SELECT
    oncekey_turn_days('answers'), oncekey_turn_days('steps_by_day'), oncekey_turn_days('requests_by_day')
