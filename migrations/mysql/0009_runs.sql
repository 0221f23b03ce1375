-- What a dead process had started, since when a delivery has been tried, and which run of an instance was seen.
-- Each column asks first, as in 0003. MariaDB and MySQL 8 add them without touching the rows.
SET @bc = (SELECT CASE COUNT(*) WHEN 0 THEN 'ALTER TABLE bc_event_consume_log ADD COLUMN started INT NOT NULL DEFAULT 0' ELSE 'DO 0' END
    FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'bc_event_consume_log' AND column_name = 'started');
PREPARE bc FROM @bc;
EXECUTE bc;
DEALLOCATE PREPARE bc;
SET @bc = (SELECT CASE COUNT(*) WHEN 0 THEN 'ALTER TABLE bc_event_consume_log ADD COLUMN first_run_at DATETIME(6) NULL' ELSE 'DO 0' END
    FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'bc_event_consume_log' AND column_name = 'first_run_at');
PREPARE bc FROM @bc;
EXECUTE bc;
DEALLOCATE PREPARE bc;
SET @bc = (SELECT CASE COUNT(*) WHEN 0 THEN 'ALTER TABLE bc_event_consume_log_archive ADD COLUMN started INT NOT NULL DEFAULT 0' ELSE 'DO 0' END
    FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'bc_event_consume_log_archive' AND column_name = 'started');
PREPARE bc FROM @bc;
EXECUTE bc;
DEALLOCATE PREPARE bc;
SET @bc = (SELECT CASE COUNT(*) WHEN 0 THEN 'ALTER TABLE bc_event_consume_log_archive ADD COLUMN first_run_at DATETIME(6) NULL' ELSE 'DO 0' END
    FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'bc_event_consume_log_archive' AND column_name = 'first_run_at');
PREPARE bc FROM @bc;
EXECUTE bc;
DEALLOCATE PREPARE bc;
SET @bc = (SELECT CASE COUNT(*) WHEN 0 THEN 'ALTER TABLE bc_instance ADD COLUMN run_id VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL' ELSE 'DO 0' END
    FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'bc_instance' AND column_name = 'run_id');
PREPARE bc FROM @bc;
EXECUTE bc;
DEALLOCATE PREPARE bc;
