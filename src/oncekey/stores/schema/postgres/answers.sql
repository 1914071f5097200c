-- The table of answers anew, while the layout is "inline", no transaction is left that writes into
-- the table, and every answer is in its claim: {parts} says whether it has one for each day.
-- Statements do not notice: they wait for the lock and then find the other table under the name. Who
-- was allowed to use the one may use the other.
DO $$
DECLARE
    allowed aclitem[];
    permission record;
BEGIN
    SET LOCAL lock_timeout = '2s';
    LOCK TABLE oncekey_answers IN ACCESS EXCLUSIVE MODE;
    IF (SELECT layout FROM oncekey_schema WHERE number = 4) <> 'inline' THEN
        RAISE EXCEPTION 'answers are being kept in this table';
    END IF;
    SELECT relacl INTO allowed FROM pg_class WHERE oid = 'oncekey_answers'::regclass;
    DROP TABLE oncekey_answers;
    CREATE TABLE oncekey_answers (
        day     date NOT NULL,
        id      bytea NOT NULL,
        status  integer NOT NULL,
        headers bytea NOT NULL,
        body    bytea,
        PRIMARY KEY (day, id)
    ) {parts};
    FOR permission IN SELECT * FROM aclexplode(allowed) WHERE grantee <> 0 LOOP
        EXECUTE format(
            'GRANT %s ON oncekey_answers TO %s', permission.privilege_type, permission.grantee::regrole
        );
    END LOOP;
END
$$
