"""Real servers for the tests: Postgres and Kafka as child processes that die with the tests."""
