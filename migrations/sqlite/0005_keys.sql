-- One key does for two: it keeps an effect from happening twice, and finds the deliveries of an event.
-- All consumers of an event write next to one another.
CREATE UNIQUE INDEX IF NOT EXISTS bc_event_consume_log_uk_event_consumer ON bc_event_consume_log (event_id, consumer_name);
DROP INDEX IF EXISTS bc_event_consume_log_uk_consumer_event;
DROP INDEX IF EXISTS bc_event_consume_log_idx_event_id;

-- What is SENT is never looked for by its status: it costs nothing in the index that is for the others.
DROP INDEX IF EXISTS bc_outbox_event_idx_status_next_retry;
CREATE INDEX IF NOT EXISTS bc_outbox_event_idx_status_next_retry ON bc_outbox_event (status, next_retry_at, id) WHERE status <> 'SENT';
