"""Events and their delivery to the endpoints of an account."""
