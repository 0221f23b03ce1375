-- How far a backfill has got for its consumer, so that later events can wait behind it, and when a job is due, for the doctor.
ALTER TABLE bc_bulk_operation ADD COLUMN IF NOT EXISTS consumer_name varchar(128) NULL;
ALTER TABLE bc_bulk_operation ADD COLUMN IF NOT EXISTS reached bigint NOT NULL DEFAULT 0;
ALTER TABLE bc_job_lease ADD COLUMN IF NOT EXISTS cron varchar(255) NULL;
