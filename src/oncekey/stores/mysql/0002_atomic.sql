-- oldest reader: 1

-- Which ids are held by a transaction of atomic mode, or by a caller's that handles a message. Each of them inserts a
-- row and removes it at once, and so owns it until it ends, whichever way. Nobody ever sees a row in here.
CREATE TABLE IF NOT EXISTS oncekey_held (
    id VARBINARY(64) NOT NULL PRIMARY KEY
) ENGINE = InnoDB;
