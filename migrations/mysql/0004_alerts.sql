-- What is wrong now, or was lately: one row per fingerprint of rule and subject.
CREATE TABLE IF NOT EXISTS bc_alert (
    fingerprint VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    rule VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    subject VARCHAR(300) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    consumer_name VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    event_type VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    level VARCHAR(16) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    state VARCHAR(16) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    episode BIGINT NOT NULL DEFAULT 0,
    notices BIGINT NOT NULL DEFAULT 0,
    reminders INT NOT NULL DEFAULT 0,
    occurrences BIGINT NOT NULL DEFAULT 0,
    says TEXT NOT NULL,
    remedy TEXT NOT NULL,
    since_at DATETIME(6) NOT NULL,
    first_seen_at DATETIME(6) NOT NULL,
    last_seen_at DATETIME(6) NOT NULL,
    next_notice_at DATETIME(6) NULL,
    resolved_at DATETIME(6) NULL,
    lock_version BIGINT NOT NULL DEFAULT 0,
    KEY idx_state (state, last_seen_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- The messages about it, one row per sink: written with the state, sent afterwards, until somebody has it.
CREATE TABLE IF NOT EXISTS bc_alert_message (
    id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY,
    fingerprint VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    notice BIGINT NOT NULL,
    sink VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    kind VARCHAR(16) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    level VARCHAR(16) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    occurrences BIGINT NOT NULL,
    says TEXT NOT NULL,
    since_at DATETIME(6) NOT NULL,
    state VARCHAR(16) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT 'WAITING',
    attempts INT NOT NULL DEFAULT 0,
    next_retry_at DATETIME(6) NOT NULL,
    locked_by VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    lock_version BIGINT NOT NULL DEFAULT 0,
    last_error TEXT NULL,
    created_at DATETIME(6) NOT NULL,
    sent_at DATETIME(6) NULL,
    UNIQUE KEY uk_notice_sink (fingerprint, notice, sink),
    KEY idx_state_sink (state, sink, id)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
