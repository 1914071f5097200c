-- oldest reader: 1

-- In the layout "inline" a row leaves out still more: what a policy says if nobody says otherwise, the
-- one beat of what was completed at once, and of a key that is a UUID, as most are, its spelling.
SET LOCAL lock_timeout = '2s';
ALTER TABLE oncekey_claims
    ADD COLUMN key_uuid uuid,
    ALTER COLUMN key DROP NOT NULL,                 -- key_uuid
    ALTER COLUMN fingerprint_version DROP NOT NULL, -- 1
    ALTER COLUMN lease_s DROP NOT NULL,             -- 30
    ALTER COLUMN retention_s DROP NOT NULL;         -- 86400
