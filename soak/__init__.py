"""Real processes, real servers, real faults, for as long as you like: ./dev soak.

Callers retry their orders at several workers while those are killed and frozen, and while the way
to the store loses what is said on it. Every run of a handler leaves lines in a ledger that oncekey
knows nothing of. In the end the ledger and what the callers saw are judged by the promises.
"""
