"""Records in Redis and Valkey."""
