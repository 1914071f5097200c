-- For days that have no part: nothing is refused because a part was not made in time.
CREATE TABLE oncekey_answers_other PARTITION OF oncekey_answers DEFAULT;

-- Makes the parts of coming days and drops those of days that are over; how many it dropped. It is
-- run by whoever sweeps, with the rights of the owner, and does nothing that could hurt: whatever is
-- in its way for a moment makes it leave the rest for the next time. What takes long comes before what
-- others have to wait for.
--
-- An answer is kept under the day on which its claim expires. So a day of which no claim is left,
-- because all that expired until its end were swept, is one that no claim's answer is in.
CREATE OR REPLACE FUNCTION oncekey_turn_days() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '200ms'
AS $$
DECLARE
    today   date := (clock_timestamp() AT TIME ZONE 'UTC')::date;
    last    date;
    turning date;
    part    text;
    dropped integer := 0;
BEGIN
    IF NOT pg_try_advisory_xact_lock(31360989905909114) THEN
        RETURN 0;
    END IF;
    DELETE FROM oncekey_answers_other WHERE (day, id) IN (
        SELECT day, id FROM oncekey_answers_other o
        WHERE day < today
            AND NOT EXISTS (SELECT FROM oncekey_claims c WHERE c.id = o.id AND c.answer_day = o.day)
        LIMIT 10000
    );
    -- As far ahead as records live, and two days more; those that live for long have no part.
    SELECT (expires AT TIME ZONE 'UTC')::date INTO last
    FROM oncekey_claims
    WHERE expires < clock_timestamp() + interval '35 days'
    ORDER BY expires DESC
    LIMIT 1;
    BEGIN
        FOR turning IN SELECT generate_series(today, greatest(last, today) + 2, interval '1 day') LOOP
            part := to_char(turning, '"oncekey_answers_"YYYYMMDD');
            CONTINUE WHEN to_regclass(part) IS NOT NULL;
            CONTINUE WHEN EXISTS (SELECT FROM oncekey_answers_other WHERE day = turning);
            -- Judged again once it is locked: nobody is about to keep an answer of that day there.
            LOCK TABLE oncekey_answers_other IN ACCESS EXCLUSIVE MODE;
            CONTINUE WHEN EXISTS (SELECT FROM oncekey_answers_other WHERE day = turning);
            EXECUTE format('CREATE TABLE %I (LIKE oncekey_answers INCLUDING ALL)', part);
            EXECUTE format(
                'ALTER TABLE oncekey_answers ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)',
                part, turning, turning + 1
            );
        END LOOP;
    EXCEPTION WHEN lock_not_available OR deadlock_detected THEN
        NULL;
    END;
    BEGIN
        FOR part IN
            SELECT inhrelid::regclass::text FROM pg_inherits
            WHERE inhparent = 'oncekey_answers'::regclass
                AND inhrelid::regclass::text ~ '^oncekey_answers_\d{8}$'
                AND right(inhrelid::regclass::text, 8) < to_char(today, 'YYYYMMDD')
            ORDER BY 1
        LOOP
            turning := to_date(right(part, 8), 'YYYYMMDD') + 1;
            EXIT WHEN EXISTS (
                SELECT FROM oncekey_claims WHERE expires < turning::timestamp AT TIME ZONE 'UTC'
            );
            -- Likewise.
            EXECUTE format('LOCK TABLE oncekey_answers, %I IN ACCESS EXCLUSIVE MODE', part);
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
$$
