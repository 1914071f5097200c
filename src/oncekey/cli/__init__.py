"""The command `oncekey`: inspect and maintain a store."""
