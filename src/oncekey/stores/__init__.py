"""Where records are kept: one contract, one file per engine."""
