"""Real processes, real servers, real faults, for as long as you like: ./dev soak.

Callers retry their orders at several workers while those are killed and frozen, and while the
connection to the store loses requests and replies. Every run of a handler writes to a ledger that
oncekey does not know. At the end the ledger and what callers observed are checked against the
promises.
"""
