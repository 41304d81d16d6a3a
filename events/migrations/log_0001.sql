-- The embedded log (PROTOCOL P-6): two append-only tables, and a counter row for each cluster and table.
--
-- Positions come from the counter row, which its writer keeps locked until it commits: they are gapless and
-- become visible in order. A sequence or an identity column would show 8 before 7, and lose 7 on a rollback.

CREATE TABLE log.counters (
    topic text NOT NULL CHECK (topic IN ('events', 'commands')),
    cluster text NOT NULL,
    last bigint NOT NULL,
    PRIMARY KEY (topic, cluster)
);

CREATE TABLE log.events (
    cluster text NOT NULL,
    position bigint NOT NULL CHECK (position >= 0),
    value bytea NOT NULL,
    PRIMARY KEY (cluster, position)
);

CREATE TABLE log.commands (LIKE log.events INCLUDING ALL);

CREATE FUNCTION log.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the log is append-only: % of %.% is refused', TG_OP, TG_TABLE_SCHEMA, TG_TABLE_NAME;
END
$$;

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON log.events
    FOR EACH STATEMENT EXECUTE FUNCTION log.refuse();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON log.commands
    FOR EACH STATEMENT EXECUTE FUNCTION log.refuse();
CREATE TRIGGER kept BEFORE DELETE OR TRUNCATE ON log.counters
    FOR EACH STATEMENT EXECUTE FUNCTION log.refuse();
CREATE TRIGGER only_forward BEFORE UPDATE ON log.counters
    FOR EACH ROW WHEN (NEW.last <= OLD.last OR NEW.topic <> OLD.topic OR NEW.cluster <> OLD.cluster)
    EXECUTE FUNCTION log.refuse();
