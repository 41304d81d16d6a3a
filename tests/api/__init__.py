"""The outer interface, over the whole way of a request: the app, real Postgres, the real core, logs in memory."""
