"""Records that only holders of a secret can read, around any other store."""
