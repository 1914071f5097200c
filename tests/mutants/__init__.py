"""Proof that the suite can fail: each of its promises is broken on purpose, and it must notice."""
