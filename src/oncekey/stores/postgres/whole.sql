-- Nothing is kept by day any more: what the parts of steps and requests still hold belongs to no
-- record that could be asked for.
DO $$
DECLARE
    part regclass;
BEGIN
    FOR part IN
        SELECT inhrelid FROM pg_inherits
        WHERE inhparent IN ('oncekey_steps_by_day'::regclass, 'oncekey_requests_by_day'::regclass)
    LOOP
        EXECUTE format('DROP TABLE %s', part);
    END LOOP;
END
$$;
DROP FUNCTION IF EXISTS oncekey_turn_days(text), oncekey_turn_days()
