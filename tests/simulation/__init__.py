"""A whole control plane in one process, under virtual time and one seed: schedulers, agents, logs, database, network.

loop: time and processes that can be stopped and killed at any await. network, gateway: streams between agents and
schedulers. faults: what is to go wrong, and when. audit: what must hold at every instant. world: all of it together.
scenarios: what PROTOCOL asks the simulation to exercise. `python -m tests.simulation` runs long hunts.
"""
