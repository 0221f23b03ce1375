-- How far a backfill has got for its consumer, so that later events can wait behind it, and when a job is due, for the doctor.
-- Each column asks first, as in 0003. The tables are small.
SET @bc = (SELECT CASE COUNT(*) WHEN 0 THEN 'ALTER TABLE bc_bulk_operation ADD COLUMN consumer_name VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL' ELSE 'DO 0' END
    FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'bc_bulk_operation' AND column_name = 'consumer_name');
PREPARE bc FROM @bc;
EXECUTE bc;
DEALLOCATE PREPARE bc;
SET @bc = (SELECT CASE COUNT(*) WHEN 0 THEN 'ALTER TABLE bc_bulk_operation ADD COLUMN reached BIGINT NOT NULL DEFAULT 0' ELSE 'DO 0' END
    FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'bc_bulk_operation' AND column_name = 'reached');
PREPARE bc FROM @bc;
EXECUTE bc;
DEALLOCATE PREPARE bc;
SET @bc = (SELECT CASE COUNT(*) WHEN 0 THEN 'ALTER TABLE bc_job_lease ADD COLUMN cron VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL' ELSE 'DO 0' END
    FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'bc_job_lease' AND column_name = 'cron');
PREPARE bc FROM @bc;
EXECUTE bc;
DEALLOCATE PREPARE bc;
