"""What oncekey is tested with, for everybody who builds on it."""
