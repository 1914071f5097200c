"""The system on one machine, for people to watch and to break."""
