"""The outer interface: REST, the event feed and the relay of task logs.

Checks form and identity, appends commands, waits for the events that answer them, and shows what the read
models and the log say. Decides nothing, and holds nothing that a restart would lose.
"""
