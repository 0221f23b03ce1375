-- How far a backfill has got for its consumer, so that later events can wait behind it, and when a job is due, for the doctor.
ALTER TABLE bc_bulk_operation ADD COLUMN consumer_name TEXT NULL;
ALTER TABLE bc_bulk_operation ADD COLUMN reached INTEGER NOT NULL DEFAULT 0;
ALTER TABLE bc_job_lease ADD COLUMN cron TEXT NULL;
