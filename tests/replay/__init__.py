"""Tests of replay/: verify, recorded days, the engine and its reports."""
