"""Who gets which GPUs, and the one leader that makes it so.

`planning/` is the pure planner; the rest is the thin shell around the core: leadership, claims, writer,
service. Agents are reached through a port (link.py); this package knows no wire and no server framework.
"""
