-- Schema `control`: leadership, claims, snapshots and key bindings. Written by the scheduler (bindings: by the api),
-- never touched by a rebuild of the read models. The log is the truth; all of this can be made anew from it.
CREATE SCHEMA IF NOT EXISTS control;

-- One row a cluster: who leads, until when by this database's clock, and how far the log was accepted (P-5, P-8).
CREATE TABLE IF NOT EXISTS control.leadership (
    cluster      text PRIMARY KEY,
    epoch        bigint NOT NULL,
    nonce        text NOT NULL,
    holder       text NOT NULL,
    address      text,
    expires_at   timestamptz NOT NULL,
    renewals     bigint NOT NULL DEFAULT 0,
    floor_epoch  bigint NOT NULL DEFAULT 0,
    head_log_id  text NOT NULL DEFAULT '',
    head_offset  bigint NOT NULL DEFAULT -1,
    head_n       bigint NOT NULL DEFAULT -1,
    head_hash    text NOT NULL DEFAULT '',
    taking       text NOT NULL DEFAULT '',
    suspects     text NOT NULL DEFAULT '',
    restored_by  text,
    restored_reason text
);

-- I-1: a GPU belongs to at most one live lease.
CREATE TABLE IF NOT EXISTS control.claims (
    cluster    text NOT NULL,
    node_id    text NOT NULL,
    gpu_index  integer NOT NULL CHECK (gpu_index >= 0),
    lease_id   text NOT NULL,
    epoch      bigint NOT NULL,
    PRIMARY KEY (cluster, node_id, gpu_index)
);
CREATE INDEX IF NOT EXISTS claims_lease ON control.claims (cluster, lease_id);

-- P-10: state at a position of the log, used only if the fingerprint and the record at that position match.
CREATE TABLE IF NOT EXISTS control.snapshots (
    cluster      text NOT NULL,
    n            bigint NOT NULL,
    head         jsonb NOT NULL,
    fingerprint  text NOT NULL,
    state        bytea NOT NULL,
    made_at      timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (cluster, n)
);

-- P-14: an idempotency key names one job in one cluster, from before its command is in the log.
CREATE TABLE IF NOT EXISTS control.bindings (
    digest    text PRIMARY KEY,
    cluster   text NOT NULL,
    job_id    text NOT NULL,
    body      text NOT NULL,
    bound_at  timestamptz NOT NULL DEFAULT now()
);
