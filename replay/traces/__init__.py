"""Traces of other clusters, read and made scenarios of. What a row lacks is counted by its reason, never guessed."""
