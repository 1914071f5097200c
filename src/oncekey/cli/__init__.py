"""The command `oncekey`: look at a store and keep it in order."""
