-- oldest reader: 1

-- In the layout "partitioned" steps and kept requests are in tables that have a part for each day on
-- which their records expire, as answers are. The claim says whether its own are there, and in
-- which part: null, in all other layouts, stands for the places that older releases know.
SET LOCAL lock_timeout = '2s';
ALTER TABLE oncekey_claims ADD COLUMN kept_day date;

-- There in every layout, because statements name them; without a part they cost nothing. Whoever may
-- use the table of steps may use these, and has not to be told in the middle of a deployment.
DO $$
DECLARE
    path       text := current_setting('search_path');
    steps      pg_class;
    made       text;
    permission record;
BEGIN
    SELECT * INTO steps FROM pg_class WHERE oid = 'oncekey_steps'::regclass;
    PERFORM set_config('search_path', steps.relnamespace::regnamespace::text, true);
    CREATE TABLE oncekey_steps_by_day (
        day        date NOT NULL,
        id         bytea NOT NULL,
        generation bigint NOT NULL,
        name       text COLLATE "C" NOT NULL,
        position   bigint NOT NULL,         -- drawn from the fences: no further sequence, no GRANT
        digest     bytea NOT NULL,
        result     bytea,
        PRIMARY KEY (day, id, generation, name)
    ) PARTITION BY RANGE (day);
    CREATE TABLE oncekey_requests_by_day (
        day     date NOT NULL,
        id      bytea NOT NULL,
        fence   bigint NOT NULL,            -- of the claim that brought it
        request bytea NOT NULL,
        PRIMARY KEY (day, id, fence)
    ) PARTITION BY RANGE (day);
    FOREACH made IN ARRAY ARRAY['oncekey_steps_by_day', 'oncekey_requests_by_day'] LOOP
        EXECUTE format('ALTER TABLE %I OWNER TO %s', made, steps.relowner::regrole);
        FOR permission IN SELECT * FROM aclexplode(steps.relacl) LOOP
            EXECUTE format(
                'GRANT %s ON %I TO %s',
                permission.privilege_type,
                made,
                CASE permission.grantee WHEN 0 THEN 'PUBLIC' ELSE permission.grantee::regrole::text END
            );
        END LOOP;
    END LOOP;
    PERFORM set_config('search_path', path, true);
END
$$;

-- What a record keeps by day goes along when it will expire on another one, in the statement that
-- says so: then a day's part holds nothing that a record of a later day needs. And what is not kept
-- any longer goes: steps, those of them that were only begun, the request. Gives the new day.
--
-- A function, so that statements which move nothing, nearly all, do not open every part. It is called
-- by who has locked the claim, and has a snapshot of its own, which shows what was waited for.
CREATE OR REPLACE FUNCTION oncekey_carry(
    record_id bytea, was date, becomes date, keep_steps boolean, keep_begun boolean, keep_request boolean
) RETURNS date
LANGUAGE plpgsql
AS $$
BEGIN
    IF NOT (keep_steps AND keep_begun) THEN
        DELETE FROM oncekey_steps_by_day
        WHERE day = was AND id = record_id AND NOT (keep_steps AND result IS NOT NULL);
    END IF;
    IF NOT keep_request THEN
        DELETE FROM oncekey_requests_by_day WHERE day = was AND id = record_id;
    END IF;
    IF was <> becomes THEN
        UPDATE oncekey_steps_by_day SET day = becomes WHERE day = was AND id = record_id;
        UPDATE oncekey_requests_by_day SET day = becomes WHERE day = was AND id = record_id;
    END IF;
    RETURN becomes;
END
$$;
-- It can do no more than whoever calls it, and every completion names it: also where a function is
-- not everybody's by default.
GRANT EXECUTE ON FUNCTION oncekey_carry TO PUBLIC
