"""Real processes, killed or frozen at every probe."""
