"""Replay: importers, engine, verification and reports, each by tests of its own."""
