"""Days of a cluster in virtual time: the production core among model agents, and what a policy does over hours."""
