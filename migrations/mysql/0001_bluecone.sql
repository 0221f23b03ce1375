-- Tables of bluecone for MySQL 8 and MariaDB 10.6 or newer. Times are UTC by the database's clock.
-- Payloads are LONGTEXT, not JSON: MariaDB's JSON is LONGTEXT with a CHECK, and one row that breaks it
-- (written before the CHECK existed, say) makes every statement that touches the row fail.

-- Events, written in the transaction of the change that caused them.
CREATE TABLE IF NOT EXISTS bc_outbox_event (
    id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    tenant_id BIGINT UNSIGNED NULL,
    store_id BIGINT UNSIGNED NULL,
    aggregate_type VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    aggregate_id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    event_type VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    event_id VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    event_payload LONGTEXT NOT NULL,
    event_metadata LONGTEXT NULL,
    schema_version INT NOT NULL DEFAULT 1,
    status VARCHAR(32) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT 'NEW',
    retry_count INT NOT NULL DEFAULT 0,
    max_retry_count INT NOT NULL DEFAULT 10,
    next_retry_at DATETIME(6) NULL,
    locked_by VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    lock_version BIGINT NOT NULL DEFAULT 0,
    last_error TEXT NULL,
    created_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    updated_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    sent_at DATETIME(6) NULL,
    open_aggregate VARCHAR(193) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin AS (CASE WHEN status = 'SENT' THEN NULL ELSE CONCAT(aggregate_type, '/', aggregate_id) END) STORED,
    UNIQUE KEY uk_event_id (event_id),
    KEY idx_status_next_retry (status, next_retry_at, id),
    KEY idx_aggregate (aggregate_type, aggregate_id, id),
    KEY idx_open_aggregate (open_aggregate, id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- One row per (consumer, event): what makes an effect happen once.
CREATE TABLE IF NOT EXISTS bc_event_consume_log (
    id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    tenant_id BIGINT UNSIGNED NULL,
    consumer_name VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    event_id VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    event_type VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    status VARCHAR(32) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT 'SUCCESS',
    idempotency_key VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    consume_result LONGTEXT NULL,
    error_message TEXT NULL,
    outbox_id BIGINT UNSIGNED NULL,
    aggregate_type VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    aggregate_id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    attempts INT NOT NULL DEFAULT 0,
    next_retry_at DATETIME(6) NULL,
    locked_by VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    lock_version BIGINT NOT NULL DEFAULT 0,
    consumed_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    created_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    updated_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    UNIQUE KEY uk_consumer_event (consumer_name, event_id),
    KEY idx_idempotency_key (idempotency_key),
    KEY idx_consumer_due (consumer_name, status, next_retry_at, id),
    KEY idx_event_id (event_id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Events that retention has moved out of the way.
CREATE TABLE IF NOT EXISTS bc_outbox_event_archive (
    id BIGINT UNSIGNED NOT NULL PRIMARY KEY,
    tenant_id BIGINT UNSIGNED NULL,
    store_id BIGINT UNSIGNED NULL,
    aggregate_type VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    aggregate_id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    event_type VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    event_id VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    event_payload LONGTEXT NOT NULL,
    event_metadata LONGTEXT NULL,
    schema_version INT NOT NULL DEFAULT 1,
    status VARCHAR(32) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT 'NEW',
    retry_count INT NOT NULL DEFAULT 0,
    max_retry_count INT NOT NULL DEFAULT 10,
    next_retry_at DATETIME(6) NULL,
    locked_by VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    lock_version BIGINT NOT NULL DEFAULT 0,
    last_error TEXT NULL,
    created_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    updated_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    sent_at DATETIME(6) NULL,
    archived_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    KEY idx_event_id (event_id),
    KEY idx_aggregate (aggregate_type, aggregate_id, id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Deliveries of archived events.
CREATE TABLE IF NOT EXISTS bc_event_consume_log_archive (
    id BIGINT UNSIGNED NOT NULL PRIMARY KEY,
    tenant_id BIGINT UNSIGNED NULL,
    consumer_name VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    event_id VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    event_type VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    status VARCHAR(32) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT 'SUCCESS',
    idempotency_key VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    consume_result LONGTEXT NULL,
    error_message TEXT NULL,
    outbox_id BIGINT UNSIGNED NULL,
    aggregate_type VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    aggregate_id VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    attempts INT NOT NULL DEFAULT 0,
    next_retry_at DATETIME(6) NULL,
    locked_by VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    lock_version BIGINT NOT NULL DEFAULT 0,
    consumed_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    created_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    updated_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    archived_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    KEY idx_event_id (event_id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Consumers that some instance has registered, and whether they are paused.
CREATE TABLE IF NOT EXISTS bc_consumer (
    name VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    event_types TEXT NOT NULL,
    aliases TEXT NOT NULL,
    paused_until DATETIME(6) NULL,
    paused_by VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    pause_reason TEXT NULL,
    registered_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    seen_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6))
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Attempts that did not succeed.
CREATE TABLE IF NOT EXISTS bc_delivery_attempt (
    id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    consumer_name VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    event_id VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    attempt INT NOT NULL,
    outcome VARCHAR(32) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    error_message TEXT NULL,
    instance VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    duration_us BIGINT NOT NULL,
    created_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    KEY idx_event_consumer (event_id, consumer_name),
    KEY idx_created_at (created_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- What operators did, and why.
CREATE TABLE IF NOT EXISTS bc_audit_log (
    id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    actor VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    action VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    target VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    reason TEXT NOT NULL,
    details TEXT NULL,
    created_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    KEY idx_target (target),
    KEY idx_created_at (created_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Who runs a scheduled job now, and when it was last due.
CREATE TABLE IF NOT EXISTS bc_job_lease (
    job_code VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    locked_by VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    locked_until DATETIME(6) NULL,
    lock_version BIGINT NOT NULL DEFAULT 0,
    last_due_at DATETIME(6) NULL,
    last_started_at DATETIME(6) NULL,
    last_finished_at DATETIME(6) NULL,
    last_status VARCHAR(32) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- History of job runs.
CREATE TABLE IF NOT EXISTS bc_job_run (
    id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    job_code VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    instance VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    status VARCHAR(32) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    started_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    finished_at DATETIME(6) NULL,
    duration_us BIGINT NULL,
    counts TEXT NULL,
    error_message TEXT NULL,
    KEY idx_job_code (job_code, id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
