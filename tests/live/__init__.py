"""Whole control planes of real processes on this machine, as `signalboxd up` runs them; run one by one."""
