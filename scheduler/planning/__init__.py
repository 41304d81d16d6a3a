"""The planner: pure functions that turn a state, a time and a policy into a plan. No clock, no I/O, no randomness."""
