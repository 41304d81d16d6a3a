"""The read side: accepted commits folded into Postgres tables, schema `read`, and the questions asked of them.

Nothing here decides, and nothing here is a source of truth: every table can be dropped and rebuilt from the log.
"""
