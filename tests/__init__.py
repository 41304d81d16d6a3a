"""The tests: what must be true, from single functions to whole control planes."""
