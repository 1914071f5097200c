"""The documentation, read as data, and held to the code."""
