-- The idempotency key of an event, so that it can be searched. Events saved before have none, and are in no index.
-- PostgreSQL adds the columns without touching the rows. The indexes begin empty; writers wait while the rows are read for them.
ALTER TABLE bc_outbox_event ADD COLUMN IF NOT EXISTS event_key varchar(255) NULL;
CREATE INDEX IF NOT EXISTS bc_outbox_event_idx_event_key ON bc_outbox_event (event_key) WHERE event_key IS NOT NULL;
ALTER TABLE bc_outbox_event_archive ADD COLUMN IF NOT EXISTS event_key varchar(255) NULL;
CREATE INDEX IF NOT EXISTS bc_outbox_event_archive_idx_event_key ON bc_outbox_event_archive (event_key) WHERE event_key IS NOT NULL;
