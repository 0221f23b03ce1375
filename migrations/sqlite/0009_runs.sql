-- What a dead process had started, since when a delivery has been tried, and which run of an instance was seen.
-- SQLite adds these columns without touching the rows.
ALTER TABLE bc_event_consume_log ADD COLUMN started INTEGER NOT NULL DEFAULT 0;
ALTER TABLE bc_event_consume_log ADD COLUMN first_run_at TEXT NULL;
ALTER TABLE bc_event_consume_log_archive ADD COLUMN started INTEGER NOT NULL DEFAULT 0;
ALTER TABLE bc_event_consume_log_archive ADD COLUMN first_run_at TEXT NULL;
ALTER TABLE bc_instance ADD COLUMN run_id TEXT NULL;
