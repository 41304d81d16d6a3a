"""Kafka for the tests (to come)."""
