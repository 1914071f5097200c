-- The table of answers anew, while the layout is "inline", no transaction is left that writes into
-- the table, and every answer is in its claim: {parts} says whether it has one for each day.
-- Statements do not notice: they wait for the lock and then find the other table under the name. It
-- has the schema and the owner of the one before, who may not be the role that moves; who was allowed
-- to use the one may use the other.
DO $$
DECLARE
    schema  name;
    owner   regrole;
    allowed aclitem[];
    permission record;
BEGIN
    SET LOCAL lock_timeout = '2s';
    -- Nobody turns days meanwhile: its statements would find tables of both kinds, or none.
    PERFORM pg_advisory_xact_lock(31360989905909114);
    LOCK TABLE oncekey_answers IN ACCESS EXCLUSIVE MODE;
    IF (SELECT layout FROM oncekey_schema WHERE number = 4) <> 'inline' THEN
        RAISE EXCEPTION 'answers are being kept in this table';
    END IF;
    SELECT nspname, relowner, relacl INTO schema, owner, allowed
    FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace
    WHERE c.oid = 'oncekey_answers'::regclass;
    -- Until the transaction ends, and for good in the function that it makes. Unless it is named, a
    -- schema of temporary tables comes first, and anybody can make one of those.
    PERFORM set_config('search_path', format('%I, pg_temp', schema), true);
    EXECUTE format('SET LOCAL ROLE %s', owner);
    DROP TABLE oncekey_answers;
    CREATE TABLE oncekey_answers (
        day     date NOT NULL,
        id      bytea NOT NULL,
        status  integer NOT NULL,
        headers bytea NOT NULL,
        body    bytea,
        PRIMARY KEY (day, id)
    ) {parts};
    FOR permission IN SELECT * FROM aclexplode(allowed) LOOP
        EXECUTE format(
            'GRANT %s ON oncekey_answers TO %s',
            permission.privilege_type,
            CASE permission.grantee WHEN 0 THEN 'PUBLIC' ELSE permission.grantee::regrole::text END
        );
    END LOOP;
END
$$
