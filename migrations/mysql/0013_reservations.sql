-- Events that a caller of the ledger has reserved: nobody sees them until they are confirmed.
CREATE TABLE IF NOT EXISTS bc_reservation (
    token VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    event_id VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    caller VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    event_type VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    state VARCHAR(16) NOT NULL,
    event LONGTEXT NOT NULL,
    check_url VARCHAR(2048) NOT NULL DEFAULT '',
    expires_at DATETIME(6) NOT NULL,
    next_check_at DATETIME(6) NULL,
    checks INT NOT NULL DEFAULT 0,
    last_error TEXT NULL,
    created_at DATETIME(6) NOT NULL,
    updated_at DATETIME(6) NOT NULL,
    UNIQUE KEY uk_reserved_event (event_id),
    KEY idx_next_check (next_check_at),
    KEY idx_reservation_updated (updated_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
