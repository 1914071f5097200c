-- oldest reader: 1

-- Where answers are kept, the layout says: "separate", in a table of their own, as every release
-- knows it; "inline", in the row of their claim, which older releases do not look at; or
-- "partitioned", in a table of their own that has a part for each day. It stands in the row of this
-- migration, together with the oldest release that can read what the layout has written.
SET LOCAL lock_timeout = '2s';
ALTER TABLE oncekey_schema
    ADD COLUMN layout text COLLATE "C" NOT NULL DEFAULT 'separate'
    CHECK (layout IN ('separate', 'inline', 'partitioned'));

-- Inline, a record is one row and needs no second index. Its row leaves out what was not changed
-- since the start: null takes no room.
ALTER TABLE oncekey_claims
    ADD COLUMN status integer,
    ADD COLUMN headers bytea,
    ADD COLUMN body bytea,
    ALTER COLUMN generation DROP NOT NULL,      -- its fence
    ALTER COLUMN recovery DROP NOT NULL,        -- rerun
    ALTER COLUMN schema_version DROP NOT NULL,  -- 0, as all that follow
    ALTER COLUMN attempt DROP NOT NULL,         -- but this: 1
    ALTER COLUMN lapses DROP NOT NULL,
    ALTER COLUMN beat DROP NOT NULL,
    ALTER COLUMN no_effect DROP NOT NULL,
    ALTER COLUMN replays DROP NOT NULL,
    ALTER COLUMN conflicts DROP NOT NULL;
