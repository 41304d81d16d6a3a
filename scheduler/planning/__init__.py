"""The planner: state in, plan out. Pure: no I/O, no clock, no randomness, no unordered walk (I-6).

`capacity` and `queue` are indices over the state, kept in step by each accepted commit; `fit` finds GPUs for one
gang; `plan` is the policy's one entry.
"""
