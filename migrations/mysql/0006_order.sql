-- The order question (docs/schema.md): what an aggregate has in hand, and which of its deliveries are open, each by
-- one look at an index. The columns are virtual: adding them does not rebuild the table. idx_open_aggregate stays for
-- instances of the release before.
SET @bc = (SELECT CASE COUNT(*) WHEN 0 THEN 'ALTER TABLE bc_outbox_event ADD COLUMN in_hand VARCHAR(215) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin AS (CASE WHEN status IN (''NEW'', ''DISPATCHING'') OR (status = ''SCHEDULED'' AND lock_version > 0) THEN CONCAT(COALESCE(tenant_id, 0), ''/'', aggregate_type, ''/'', aggregate_id) END) VIRTUAL' ELSE 'DO 0' END
    FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'bc_outbox_event' AND column_name = 'in_hand');
PREPARE bc FROM @bc;
EXECUTE bc;
DEALLOCATE PREPARE bc;
SET @bc = (SELECT CASE COUNT(*) WHEN 0 THEN 'ALTER TABLE bc_outbox_event ADD KEY idx_in_hand (in_hand, id)' ELSE 'DO 0' END
    FROM information_schema.statistics WHERE table_schema = DATABASE() AND table_name = 'bc_outbox_event' AND index_name = 'idx_in_hand');
PREPARE bc FROM @bc;
EXECUTE bc;
DEALLOCATE PREPARE bc;
-- These two are for 0009. MariaDB adds them without touching the rows only as long as no computed column has an index.
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
SET @bc = (SELECT CASE COUNT(*) WHEN 0 THEN 'ALTER TABLE bc_event_consume_log ADD COLUMN open_aggregate VARCHAR(223) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin AS (CASE WHEN status IN (''SUCCESS'', ''SKIPPED'') THEN NULL ELSE CONCAT(CASE WHEN status = ''DEAD'' THEN ''dead/'' ELSE ''waiting/'' END, COALESCE(tenant_id, 0), ''/'', aggregate_type, ''/'', aggregate_id) END) VIRTUAL' ELSE 'DO 0' END
    FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'bc_event_consume_log' AND column_name = 'open_aggregate');
PREPARE bc FROM @bc;
EXECUTE bc;
DEALLOCATE PREPARE bc;
SET @bc = (SELECT CASE COUNT(*) WHEN 0 THEN 'ALTER TABLE bc_event_consume_log ADD KEY idx_open_aggregate (open_aggregate, consumer_name, outbox_id)' ELSE 'DO 0' END
    FROM information_schema.statistics WHERE table_schema = DATABASE() AND table_name = 'bc_event_consume_log' AND index_name = 'idx_open_aggregate');
PREPARE bc FROM @bc;
EXECUTE bc;
DEALLOCATE PREPARE bc;
