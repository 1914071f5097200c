"""Encryption at rest: records that only holders of a secret can read, in any other store."""
