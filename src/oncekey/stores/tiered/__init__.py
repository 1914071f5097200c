"""Records in a database, and stored responses in a cache before it."""
