"""Benchmarks: `python -m bench [NAME ...]` prints one JSON line for each figure. Each subject has a module.

A module has `main()`, plain or a coroutine, that gives an iterable of Figure. Figures are of this machine and say
what they measured; a target is a promise of the requirements.
"""
