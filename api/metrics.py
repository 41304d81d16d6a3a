"""What the api counts, for Prometheus. Labels are few and bounded: route templates, never paths or names of jobs."""

from prometheus_client import Counter, Gauge, Histogram

_SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

REQUESTS = Counter("signalbox_api_requests_total", "Requests answered.", ["method", "route", "status"])
REQUEST_SECONDS = Histogram(
    "signalbox_api_request_seconds", "Time to the start of an answer, in seconds.", ["route"], buckets=_SECONDS
)
COMMANDS = Counter(
    "signalbox_api_commands_total", "Commands by type and outcome: answered, unanswered, unknown.", ["type", "outcome"]
)
ANSWER_SECONDS = Histogram(
    "signalbox_api_answer_seconds", "From the append of a command to the commit that answers it.", buckets=_SECONDS
)
FOLLOWERS = Gauge("signalbox_api_feed_followers", "Open event feeds.")
FEED_EVENTS = Counter("signalbox_api_feed_events_total", "Events sent to followers.")
LOG_SEQ = Gauge("signalbox_api_log_seq", "Newest event that this api has read from the log.", ["cluster"])
WAITING = Gauge("signalbox_api_commands_waiting", "Commands whose answer is waited for.")
