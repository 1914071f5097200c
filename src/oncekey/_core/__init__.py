"""Pure logic: no I/O, no clock, no dependency."""
