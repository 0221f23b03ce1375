-- The event types that some instance takes for a consumer, and when one last said so. During a
-- rolling deploy the releases differ, and the older one must not forget what the newer one takes.
CREATE TABLE IF NOT EXISTS bc_consumer_type (
    consumer_name TEXT NOT NULL,
    event_type TEXT NOT NULL,
    seen_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
    PRIMARY KEY (consumer_name, event_type)
);

-- Most deliveries succeed at once and have no key of their own: they cost nothing in the indexes
-- that are for the others. (MySQL has no partial indexes, and keeps those of 0001.)

DROP INDEX IF EXISTS bc_event_consume_log_idx_idempotency_key;
CREATE INDEX IF NOT EXISTS bc_event_consume_log_idx_idempotency_key ON bc_event_consume_log (idempotency_key) WHERE idempotency_key IS NOT NULL;
DROP INDEX IF EXISTS bc_event_consume_log_idx_consumer_due;
CREATE INDEX IF NOT EXISTS bc_event_consume_log_idx_consumer_due ON bc_event_consume_log (consumer_name, status, next_retry_at, id) WHERE status <> 'SUCCESS';
