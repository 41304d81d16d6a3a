"""The program: entry points, wiring, the supervisor and the embedded Postgres. Adapters are chosen here alone."""
