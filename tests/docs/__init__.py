"""The documentation, read as data: `tests/test_docs.py` holds it to the code."""
