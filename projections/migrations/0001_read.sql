-- The read models: everything here is derived from the events log, and may be dropped and rebuilt from it.
--
-- Times are milliseconds since 1970 UTC, as in the log (`_at`); durations are seconds (`_s`). Every table is keyed by
-- cluster first. Counts and figures that come from outside are bigint, so that no accepted event can overflow a column.
-- Only the projector writes here, each batch in one transaction with its position.

CREATE TABLE read.positions (
    cluster text PRIMARY KEY,
    log_id text NOT NULL,
    "offset" bigint NOT NULL,
    accepted bigint NOT NULL,
    epoch bigint NOT NULL,
    nonce text NOT NULL,
    n bigint NOT NULL,
    seq bigint NOT NULL,
    at bigint NOT NULL,
    hash text NOT NULL
);
COMMENT ON TABLE read.positions IS 'The projector''s place in each log (P-4): seq and at are those of the newest event projected.';

CREATE TABLE read.clusters (
    cluster text PRIMARY KEY,
    log_id text NOT NULL,
    epoch bigint NOT NULL,
    holder text NOT NULL,
    elected_at bigint,
    policy_version bigint NOT NULL,
    commands_log_id text,
    commands_position bigint,
    silence text NOT NULL CHECK (silence IN ('none', 'held', 'overridden')),
    silent bigint NOT NULL,
    silent_of bigint NOT NULL,
    silence_changed_at bigint,
    quiet_until_at bigint
);
COMMENT ON TABLE read.clusters IS 'The cluster as it is now: leader, policy in force, last command taken, mass silence (P-20); no time-outs until quiet_until_at.';

CREATE TABLE read.leaders (
    cluster text NOT NULL,
    epoch bigint NOT NULL,
    nonce text NOT NULL,
    holder text NOT NULL,
    rules bigint NOT NULL,
    term_n bigint NOT NULL,
    term_at bigint NOT NULL,
    elected_at bigint,
    elected_seq bigint,
    PRIMARY KEY (cluster, epoch)
);
COMMENT ON TABLE read.leaders IS 'Every leadership; the current one has the highest epoch. elected_at NULL: its gateway never opened.';

CREATE TABLE read.policies (
    cluster text NOT NULL,
    version bigint NOT NULL,
    policy jsonb NOT NULL,
    at bigint NOT NULL,
    seq bigint NOT NULL,
    actor text NOT NULL,
    reason text NOT NULL,
    PRIMARY KEY (cluster, version)
);

CREATE TABLE read.jobs (
    cluster text NOT NULL,
    job_id text NOT NULL,
    team text NOT NULL,
    principal text NOT NULL,
    name text NOT NULL,
    labels jsonb NOT NULL,
    spec jsonb NOT NULL,
    gpu_type text NOT NULL,
    gpus bigint NOT NULL,
    priority_class text NOT NULL,
    state text NOT NULL,
    held boolean NOT NULL,
    submitted_at bigint NOT NULL,
    submit_seq bigint NOT NULL,
    attempt bigint NOT NULL,
    class_rank smallint NOT NULL,
    front boolean NOT NULL,
    front_rank smallint GENERATED ALWAYS AS (CASE WHEN front THEN 0 ELSE 1 END) STORED,
    queued_at bigint,
    queue_reason text,
    not_before_at bigint,
    granted_at bigint,
    started_at bigint,
    limit_at bigint,
    max_runtime_s bigint,
    cancel_requested_at bigint,
    ended_at bigint,
    end_reason text,
    exit_code bigint,
    preemptions bigint NOT NULL,
    faults bigint NOT NULL,
    retried bigint NOT NULL,
    checkpoint_sequence bigint,
    checkpoint_uri text,
    checkpoint_step bigint,
    checkpoint_attempt bigint,
    checkpoint_at bigint,
    rejected_code text,
    rejected_field text,
    rejected_value text,
    rejected_limit text,
    changed_at bigint NOT NULL,
    changed_seq bigint NOT NULL,
    PRIMARY KEY (cluster, job_id)
);
COMMENT ON COLUMN read.jobs.spec IS 'As submitted; name, labels, priority_class, max_runtime_s beside it are as they are now.';
COMMENT ON COLUMN read.jobs.gpus IS 'Asked for: replicas x gpus_per_replica. What an attempt is charged is in read.attempts.';
COMMENT ON COLUMN read.jobs.attempt IS 'The attempt that runs, or that a queued job waits for; 0 before the first JobQueued.';
COMMENT ON COLUMN read.jobs.faults IS 'Infrastructure faults since the last checkpoint; retried: restarts after its own failure (R-6).';
COMMENT ON COLUMN read.jobs.granted_at IS 'Grant of attempt `attempt`; started_at: all its ranks run; limit_at: its max_runtime is up. NULL while queued.';

-- The order of the queue: class_rank, front first, submit_seq. Held jobs are QUEUED too, but nobody waits behind them.
CREATE INDEX jobs_queue ON read.jobs (cluster, class_rank, front_rank, submit_seq) WHERE state = 'QUEUED' AND NOT held;
CREATE INDEX jobs_by_submit ON read.jobs (cluster, submit_seq DESC);
CREATE INDEX jobs_by_team ON read.jobs (cluster, team, submit_seq DESC);
CREATE INDEX jobs_by_state ON read.jobs (cluster, state, team, submit_seq DESC);
CREATE INDEX jobs_by_label ON read.jobs USING gin (labels jsonb_path_ops);

CREATE TABLE read.attempts (
    cluster text NOT NULL,
    job_id text NOT NULL,
    attempt bigint NOT NULL,
    team text NOT NULL,
    queued_at bigint,
    granted_at bigint NOT NULL,
    granted_seq bigint NOT NULL,
    granted_n bigint NOT NULL,
    granted_epoch bigint NOT NULL,
    cycle bigint,
    limit_at bigint,
    fallback boolean NOT NULL,
    ranks bigint NOT NULL,
    gpus bigint NOT NULL,
    nodes text[] NOT NULL,
    blocks text[] NOT NULL,
    running_at bigint,
    ending_at bigint,
    ending_reason text,
    grace_s bigint,
    released_at bigint,
    exit_code bigint,
    failed_rank bigint,
    PRIMARY KEY (cluster, job_id, attempt)
);
COMMENT ON COLUMN read.attempts.gpus IS 'Claimed and charged, which may be more than asked for (R-32). nodes, blocks: sorted, each once.';
COMMENT ON COLUMN read.attempts.exit_code IS 'Of the first rank that ended with other than 0 (failed_rank); NULL while there is none.';

CREATE TABLE read.leases (
    cluster text NOT NULL,
    job_id text NOT NULL,
    attempt bigint NOT NULL,
    rank bigint NOT NULL,
    node_index bigint NOT NULL,
    node_id text NOT NULL,
    generation bigint NOT NULL,
    block text NOT NULL,
    team text NOT NULL,
    gpu_type text NOT NULL,
    gpus smallint[] NOT NULL,
    gpu_count smallint NOT NULL,
    phase text NOT NULL CHECK (phase IN ('granted', 'running', 'ended')),
    granted_at bigint NOT NULL,
    granted_seq bigint NOT NULL,
    started_at bigint,
    ended_at bigint,
    end_how text,
    exit_code bigint,
    finished boolean NOT NULL,
    detail text NOT NULL,
    PRIMARY KEY (cluster, job_id, attempt, rank)
);
COMMENT ON COLUMN read.leases.gpus IS 'Slots of the node''s generation, ascending.';
COMMENT ON COLUMN read.leases.end_how IS 'exited, stopped, timed_out, start_failed, never_started, lost (the agent''s report); reconciled, wiped, removed.';
CREATE INDEX leases_live ON read.leases (cluster, team, gpu_type) INCLUDE (node_index, gpu_count) WHERE phase <> 'ended';
CREATE INDEX leases_live_by_node ON read.leases (cluster, node_index) WHERE phase <> 'ended';
CREATE INDEX leases_by_node ON read.leases (cluster, node_id, granted_seq);

CREATE TABLE read.checkpoints (
    cluster text NOT NULL,
    seq bigint NOT NULL,
    job_id text NOT NULL,
    attempt bigint NOT NULL,
    node_index bigint NOT NULL,
    sequence bigint NOT NULL,
    uri text NOT NULL,
    size_bytes bigint NOT NULL,
    step bigint,
    at bigint NOT NULL,
    PRIMARY KEY (cluster, seq)
);
CREATE INDEX checkpoints_by_job ON read.checkpoints (cluster, job_id, sequence);

CREATE TABLE read.nodes (
    cluster text NOT NULL,
    node_index bigint NOT NULL,
    node_id text NOT NULL,
    generation bigint NOT NULL,
    boot_id text NOT NULL,
    incarnation text NOT NULL,
    journal text NOT NULL,
    address text NOT NULL,
    block text NOT NULL,
    rack text NOT NULL,
    gpu_type text NOT NULL,
    gpu_memory_gb bigint NOT NULL,
    gpu_count smallint NOT NULL,
    gpus jsonb NOT NULL,
    faults jsonb NOT NULL,
    state text NOT NULL CHECK (state IN ('up', 'suspect', 'lost', 'removed')),
    silent_s bigint,
    drained boolean NOT NULL,
    drain_reason text,
    drain_now boolean NOT NULL,
    registered_at bigint NOT NULL,
    confirmed_at bigint,
    confirmed_epoch bigint,
    state_changed_at bigint NOT NULL,
    changed_at bigint NOT NULL,
    changed_seq bigint NOT NULL,
    PRIMARY KEY (cluster, node_index)
);
COMMENT ON COLUMN read.nodes.gpus IS '[{"uuid", "island"}], slot by slot. faults: {"<slot>": code} of the GPUs out of the inventory.';
COMMENT ON COLUMN read.nodes.confirmed_epoch IS 'May be granted on only where this is the current epoch (P-16).';
CREATE UNIQUE INDEX nodes_by_id ON read.nodes (cluster, node_id);

CREATE TABLE read.quotas (
    cluster text NOT NULL,
    team text NOT NULL,
    gpu_type text NOT NULL,
    guaranteed bigint NOT NULL,
    borrow_limit bigint NOT NULL,
    changed_at bigint NOT NULL,
    changed_seq bigint NOT NULL,
    actor text NOT NULL,
    reason text NOT NULL,
    PRIMARY KEY (cluster, team, gpu_type)
);

CREATE TABLE read.teams (
    cluster text NOT NULL,
    team text NOT NULL,
    classes text[] NOT NULL,
    changed_at bigint NOT NULL,
    changed_seq bigint NOT NULL,
    PRIMARY KEY (cluster, team)
);
COMMENT ON TABLE read.teams IS 'Teams whose classes were set; the others have the policy''s default_classes.';

CREATE TABLE read.timeline (
    cluster text NOT NULL,
    seq bigint NOT NULL,
    at bigint NOT NULL,
    n bigint NOT NULL,
    type text NOT NULL,
    v smallint NOT NULL,
    job_id text,
    attempt bigint,
    node_id text,
    gpus smallint[],
    team text,
    actor text NOT NULL,
    cause text NOT NULL,
    input_kind text NOT NULL,
    input_id text NOT NULL,
    body jsonb NOT NULL,
    PRIMARY KEY (cluster, seq)
);
COMMENT ON TABLE read.timeline IS 'One row per event: a job''s timeline, audit, and the filters of the feed. body as the newest version writes it.';
CREATE INDEX timeline_by_job ON read.timeline (cluster, job_id, seq) WHERE job_id IS NOT NULL;
CREATE INDEX timeline_by_node ON read.timeline (cluster, node_id, seq) WHERE node_id IS NOT NULL;
CREATE INDEX timeline_by_team ON read.timeline (cluster, team, seq) WHERE team IS NOT NULL;
CREATE INDEX timeline_by_type ON read.timeline (cluster, type, seq);
CREATE INDEX timeline_by_actor ON read.timeline (cluster, actor, seq);
CREATE INDEX timeline_by_input ON read.timeline (cluster, input_id, seq) WHERE input_kind = 'command';
CREATE INDEX timeline_by_time ON read.timeline (cluster, at, seq);

CREATE VIEW read.quota_use AS
    SELECT l.cluster, l.team, l.gpu_type, sum(l.gpu_count)::bigint AS in_use
    FROM read.leases l JOIN read.nodes n USING (cluster, node_index)
    WHERE l.phase <> 'ended' AND n.state <> 'lost'
    GROUP BY l.cluster, l.team, l.gpu_type;
COMMENT ON VIEW read.quota_use IS 'GPUs charged now: of live leases, those still ending too, but none on a lost node (P-15).';

CREATE VIEW read.allocations AS
    SELECT l.cluster, l.node_index, l.node_id, l.generation, gpu, l.job_id, l.attempt, l.rank, l.team,
           l.granted_at, l.ended_at
    FROM read.leases l CROSS JOIN LATERAL unnest(l.gpus) AS gpu;
COMMENT ON VIEW read.allocations IS 'Who held which GPU from when to when; ended_at NULL: holds it now.';
