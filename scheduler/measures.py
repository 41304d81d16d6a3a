"""Metrics of a leader, for Prometheus. Each has one meaning (docs/glossary.md); none is read by a decision."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class Measures:
    """The metrics of one process, in a registry of its own."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self.commits = Counter("signalbox_commits_total", "Accepted commits", registry=self.registry)
        self.commands = Counter("signalbox_commands_total", "Commands taken", registry=self.registry)
        self.heartbeats = Counter("signalbox_heartbeats_total", "Heartbeats heard", registry=self.registry)
        self.commit_s = Histogram(
            "signalbox_commit_seconds",
            "From a decision's begin to its acceptance",
            buckets=BUCKETS_S,
            registry=self.registry,
        )
        self.cycle_s = Histogram(
            "signalbox_cycle_seconds", "One planning cycle", buckets=BUCKETS_S, registry=self.registry
        )
        self.failed_cycles = Counter(
            "signalbox_failed_cycles_total", "Planning cycles that an error ended", registry=self.registry
        )
        self.leads = Gauge("signalbox_leads", "1 while this process leads", registry=self.registry)
