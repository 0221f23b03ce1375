-- The idempotency key of an event, so that it can be searched. Events saved before have none.
-- Each part asks first, as in 0003. MariaDB and MySQL 8 add the columns without touching the rows; the indexes are built
-- while others read and write.
SET @bc = (SELECT CASE COUNT(*) WHEN 0 THEN 'ALTER TABLE bc_outbox_event ADD COLUMN event_key VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL' ELSE 'DO 0' END
    FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'bc_outbox_event' AND column_name = 'event_key');
PREPARE bc FROM @bc;
EXECUTE bc;
DEALLOCATE PREPARE bc;
SET @bc = (SELECT CASE COUNT(*) WHEN 0 THEN 'ALTER TABLE bc_outbox_event ADD KEY idx_event_key (event_key)' ELSE 'DO 0' END
    FROM information_schema.statistics WHERE table_schema = DATABASE() AND table_name = 'bc_outbox_event' AND index_name = 'idx_event_key');
PREPARE bc FROM @bc;
EXECUTE bc;
DEALLOCATE PREPARE bc;
SET @bc = (SELECT CASE COUNT(*) WHEN 0 THEN 'ALTER TABLE bc_outbox_event_archive ADD COLUMN event_key VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL' ELSE 'DO 0' END
    FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'bc_outbox_event_archive' AND column_name = 'event_key');
PREPARE bc FROM @bc;
EXECUTE bc;
DEALLOCATE PREPARE bc;
SET @bc = (SELECT CASE COUNT(*) WHEN 0 THEN 'ALTER TABLE bc_outbox_event_archive ADD KEY idx_event_key (event_key)' ELSE 'DO 0' END
    FROM information_schema.statistics WHERE table_schema = DATABASE() AND table_name = 'bc_outbox_event_archive' AND index_name = 'idx_event_key');
PREPARE bc FROM @bc;
EXECUTE bc;
DEALLOCATE PREPARE bc;
