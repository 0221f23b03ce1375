-- The idempotency key of an event, so that it can be searched. Events saved before have none, and are in no index.
-- SQLite adds the columns without touching the rows.
ALTER TABLE bc_outbox_event ADD COLUMN event_key TEXT NULL;
CREATE INDEX IF NOT EXISTS bc_outbox_event_idx_event_key ON bc_outbox_event (event_key) WHERE event_key IS NOT NULL;
ALTER TABLE bc_outbox_event_archive ADD COLUMN event_key TEXT NULL;
CREATE INDEX IF NOT EXISTS bc_outbox_event_archive_idx_event_key ON bc_outbox_event_archive (event_key) WHERE event_key IS NOT NULL;
