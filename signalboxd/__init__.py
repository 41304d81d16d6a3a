"""The entry points: what is wired to what, which processes run, and the embedded Postgres. The only place for that."""
