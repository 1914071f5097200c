"""Who may call, how often, and how many at a time."""
