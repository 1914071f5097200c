"""Old names of what `oncekey` and `oncekey.client` export; importing one of them warns."""
