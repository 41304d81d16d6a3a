"""Fixtures that every test can ask for: real servers, started when first asked for."""

pytest_plugins = ["tests.servers.postgres", "tests.servers.kafka"]
