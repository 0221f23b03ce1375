-- What operators need. MySQL commits every statement by itself and does not know ADD COLUMN IF NOT
-- EXISTS, so each column asks first: the file can be repeated.

-- Finds the events of a trace.
SET @bc = (SELECT CASE COUNT(*) WHEN 0 THEN 'ALTER TABLE bc_outbox_event ADD COLUMN trace_id VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL, ADD KEY idx_trace_id (trace_id)' ELSE 'DO 0' END
    FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'bc_outbox_event' AND column_name = 'trace_id');
PREPARE bc FROM @bc;
EXECUTE bc;
DEALLOCATE PREPARE bc;
SET @bc = (SELECT CASE COUNT(*) WHEN 0 THEN 'ALTER TABLE bc_outbox_event_archive ADD COLUMN trace_id VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL, ADD KEY idx_trace_id (trace_id)' ELSE 'DO 0' END
    FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'bc_outbox_event_archive' AND column_name = 'trace_id');
PREPARE bc FROM @bc;
EXECUTE bc;
DEALLOCATE PREPARE bc;

-- Whether past events may be given to the consumer again.
SET @bc = (SELECT CASE COUNT(*) WHEN 0 THEN 'ALTER TABLE bc_consumer ADD COLUMN replayable INT NOT NULL DEFAULT 0' ELSE 'DO 0' END
    FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'bc_consumer' AND column_name = 'replayable');
PREPARE bc FROM @bc;
EXECUTE bc;
DEALLOCATE PREPARE bc;

-- Publishers that run, or have not ended as they should.
CREATE TABLE IF NOT EXISTS bc_instance (
    name VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    host VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    version VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    in_flight BIGINT NOT NULL DEFAULT 0,
    clock_offset_us BIGINT NOT NULL DEFAULT 0,
    draining INT NOT NULL DEFAULT 0,
    circuits TEXT NULL,
    started_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    seen_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6))
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Operations on everything that a query selects, and how far each has come.
CREATE TABLE IF NOT EXISTS bc_bulk_operation (
    id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    operation_id VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    action VARCHAR(32) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    request LONGTEXT NOT NULL,
    state VARCHAR(32) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT 'RUNNING',
    actor VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    reason TEXT NOT NULL,
    total BIGINT NOT NULL DEFAULT 0,
    total_more INT NOT NULL DEFAULT 0,
    up_to BIGINT NOT NULL DEFAULT 0,
    seen BIGINT NOT NULL DEFAULT 0,
    done BIGINT NOT NULL DEFAULT 0,
    passed BIGINT NOT NULL DEFAULT 0,
    next_cursor VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT '',
    error_message TEXT NULL,
    locked_by VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    locked_until DATETIME(6) NULL,
    lock_version BIGINT NOT NULL DEFAULT 0,
    created_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    updated_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    finished_at DATETIME(6) NULL,
    UNIQUE KEY uk_operation_id (operation_id),
    KEY idx_state (state, id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
