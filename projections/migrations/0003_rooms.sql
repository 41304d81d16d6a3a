-- Room that is held or made for jobs, and who was stopped for whom (R-23, R-40 to R-45).
-- What was projected before has none of it: the projector begins anew, at the first record of the log.

TRUNCATE read.positions, read.clusters, read.leaders, read.policies, read.quotas, read.teams, read.nodes, read.jobs,
    read.attempts, read.leases, read.checkpoints, read.timeline;

ALTER TABLE read.jobs
    ADD COLUMN reservation jsonb,
    ADD COLUMN pledge jsonb,
    ADD COLUMN preempted jsonb;
COMMENT ON COLUMN read.jobs.reservation IS 'Nodes held for its start: {"nodes": [...], "start_at": ms, "since": ms}. NULL: none now.';
COMMENT ON COLUMN read.jobs.pledge IS 'Room that is being made for it: {"rule", "gpus", "nodes": [...], "victims": [[job, attempt]], "awaited": [[job, attempt]], "since": ms}. NULL: none now.';
COMMENT ON COLUMN read.jobs.preempted IS 'The last time that it was stopped for another: {"by": job, "rule", "attempt", "at": ms}. Every one of them is with its attempt.';

ALTER TABLE read.attempts
    ADD COLUMN preempted_by text,
    ADD COLUMN preempted_rule text;
COMMENT ON COLUMN read.attempts.preempted_by IS 'The job for which it was stopped; preempted_rule: reclaim or priority.';

ALTER TABLE read.quotas
    ADD COLUMN guaranteed_percent bigint,
    ADD COLUMN borrow_limit_percent bigint;
COMMENT ON COLUMN read.quotas.guaranteed_percent IS 'Where it was set in percent: of the registered GPUs outside pools, as they were then.';

CREATE INDEX jobs_held_room ON read.jobs (cluster, gpu_type)
    WHERE state = 'QUEUED' AND (reservation IS NOT NULL OR pledge IS NOT NULL);
