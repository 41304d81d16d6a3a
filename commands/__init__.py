"""The write side: what may be asked, the state it is asked of, and the answers.

`decide` accepts or refuses, `evolve` folds facts into state, `apply` turns a plan into facts. All pure:
no I/O, no clock, no randomness (I-6). Imports events only.
"""
