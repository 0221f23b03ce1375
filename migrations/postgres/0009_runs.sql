-- What a dead process had started, since when a delivery has been tried, and which run of an instance was seen.
-- PostgreSQL adds these columns without touching the rows.
ALTER TABLE bc_event_consume_log ADD COLUMN IF NOT EXISTS started integer NOT NULL DEFAULT 0;
ALTER TABLE bc_event_consume_log ADD COLUMN IF NOT EXISTS first_run_at timestamptz NULL;
ALTER TABLE bc_event_consume_log_archive ADD COLUMN IF NOT EXISTS started integer NOT NULL DEFAULT 0;
ALTER TABLE bc_event_consume_log_archive ADD COLUMN IF NOT EXISTS first_run_at timestamptz NULL;
ALTER TABLE bc_instance ADD COLUMN IF NOT EXISTS run_id varchar(64) NULL;
