"""What may be set about the api itself. Sizes in bytes, times in seconds."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """Limits and waits of one api process."""

    body_bytes_max: int = 1024 * 1024
    header_bytes_max: int = 32 * 1024
    command_bytes_max: int = 128 * 1024
    """A command's record; the commit that answers it has to fit the log's limit several times (P-7)."""
    answer_wait_s: float = 2.0
    """After that a write answers 202 SUBMITTED (DESIGN 1)."""
    position_wait_s: float = 0.15
    """How long an answer waits for the projection to count those ahead; later the position is null."""
    min_seq_wait_s: float = 5.0
    rate_per_s: float = 200.0
    rate_burst: float = 2000.0
    """Requests of a principal (R-111)."""
    waiting_max: int = 20_000
    """Writes that wait for their answers at one time; above it they answer 202 at once."""
    pool_size: int = 8
    feed_ring_events: int = 20_000
    """Newest events kept in memory, encoded."""
    feed_batch_s: float = 0.01
    feed_idle_s: float = 15.0
    """A sign of life is sent to a follower after that."""
    feeds_per_principal_max: int = 256
    tail_wait_s: float = 10.0
    """How long a reader of logs waits for the agent to dial in."""
    tail_url: str = "http://127.0.0.1:8080"
    """Where agents reach this process; /internal/tails/{id} is added."""
    metrics_open: bool = False
    """Serve /metrics without a token."""
    ready_lag_s: float = 30.0
    """A projection that is further behind makes the api unready."""
    key_days: int = 31
    """Bindings older than that are taken over by a new request with the same key (R-2: kept 30 days)."""
