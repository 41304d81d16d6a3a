"""What happened: the events, the records that carry them, and the logs that keep them.

Bottom layer. Knows nothing of commands, planning, servers or people. Everything but the log
adapters (memory, postgres, kafka) is pure: no I/O, no clock, no randomness.
"""
