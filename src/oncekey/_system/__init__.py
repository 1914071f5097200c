"""Inner: not for import."""
