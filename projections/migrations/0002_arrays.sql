-- Arrays and dependencies (R-7).

ALTER TABLE read.jobs
    ADD COLUMN made_seq bigint NOT NULL DEFAULT 0,
    ADD COLUMN waits_on text[] NOT NULL DEFAULT '{}',
    ADD COLUMN element_of text,
    ADD COLUMN element bigint,
    ADD COLUMN elements_made bigint NOT NULL DEFAULT 0,
    ADD COLUMN elements_open bigint NOT NULL DEFAULT 0,
    ADD COLUMN elements_cancelled bigint NOT NULL DEFAULT 0,
    ADD COLUMN elements_succeeded bigint NOT NULL DEFAULT 0;
UPDATE read.jobs SET made_seq = submit_seq;
ALTER TABLE read.jobs ALTER COLUMN made_seq DROP DEFAULT;
COMMENT ON COLUMN read.jobs.made_seq IS 'Seq of the event that made the job: one of its own for each element of an array, which all have its submit_seq.';
COMMENT ON COLUMN read.jobs.waits_on IS 'Jobs that have to end before it is in the queue.';
COMMENT ON COLUMN read.jobs.elements_made IS 'Of an array: elements that were granted, each a job of its own (element_of, element); elements_open: those that have not ended.';

DROP INDEX read.jobs_queue, read.jobs_by_submit, read.jobs_by_team, read.jobs_by_state;
CREATE INDEX jobs_queue ON read.jobs (cluster, class_rank, front_rank, submit_seq)
    WHERE state = 'QUEUED' AND NOT held AND cardinality(waits_on) = 0;
CREATE INDEX jobs_by_made ON read.jobs (cluster, made_seq DESC);
CREATE INDEX jobs_by_team ON read.jobs (cluster, team, made_seq DESC);
CREATE INDEX jobs_by_state ON read.jobs (cluster, state, team, made_seq DESC);
CREATE INDEX jobs_by_array ON read.jobs (cluster, element_of, made_seq DESC) WHERE element_of IS NOT NULL;
