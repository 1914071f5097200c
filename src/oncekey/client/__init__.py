"""The other side: for programs that call services which take an idempotency key."""
