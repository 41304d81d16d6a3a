"""What a projector tells Prometheus."""

from prometheus_client import Counter, Gauge, Histogram

POSITION = Gauge(
    "projection_position", "Offset of the last record of the events log that is in the tables.", ["cluster"]
)
SEQ = Gauge("projection_seq", "Number of the last event that is in the tables.", ["cluster"])
LAG_SEQ = Gauge(
    "projection_lag_seq", "Events read from the log and not in the tables yet; 0 where it keeps up.", ["cluster"]
)
LAG_RECORDS = Gauge("projection_lag_records", "Records between the tables and the end of the log.", ["cluster"])
STOPPED = Gauge(
    "projection_stopped", "1: it met what it cannot project, and stands still until an operator acts.", ["cluster"]
)
EVENTS = Counter("projection_events", "Events projected by this process.", ["cluster"])
BATCH_SECONDS = Histogram(
    "projection_batch_seconds",
    "Time to fold and store one batch.",
    ["cluster"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5),
)
