"""Fixtures that every test can ask for: real servers, started when first asked for; and how examples are drawn."""

from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.servers.postgres", "tests.servers.kafka"]

# The same examples for the same code, and none against the clock: nobody's change is refused for what a draw, or the
# load of the machine, has brought up. `--hypothesis-profile=search` draws anew each time: how to look for more.
_patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("search", _patient)
settings.register_profile("steady", _patient, derandomize=True)
settings.load_profile("steady")
