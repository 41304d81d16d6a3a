"""Options of both ends of the gRPC connections, pinned. The storm test shows what they are for."""

SERVICE = "signalbox.v1.Scheduler"
_MESSAGE_BYTES_MAX = 16 << 20

SERVER = (
    # A new leader is dialed by all agents at once. By default gRPC refuses or randomly drops requests that wait for
    # the Python loop, and neither side learns why.
    ("grpc.server.max_pending_requests", 1_000_000),
    ("grpc.server.max_pending_requests_hard_limit", 1_000_000),
    ("grpc.max_concurrent_streams", 1_000_000),
    ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", _MESSAGE_BYTES_MAX),
    ("grpc.so_reuseport", 0),
    # Half-open connections end, and agents may ask us whether we are there.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
)

CLIENT = (
    ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", _MESSAGE_BYTES_MAX),
    # Channels with equal arguments would share one connection.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    # Also how long a connection may take to be made, which in a storm is seconds.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.enable_retries", 0),
)
