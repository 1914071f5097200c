"""The public API: one file per resource, and what they share."""
