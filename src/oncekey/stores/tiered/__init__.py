"""Records in a database, with completed responses in a cache before it."""
