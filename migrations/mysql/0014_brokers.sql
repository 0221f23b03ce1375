-- What relays and inboxes know of their brokers, one row for each instance of each.
CREATE TABLE IF NOT EXISTS bc_broker (
    role VARCHAR(16) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    name VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    instance VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    broker VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    state VARCHAR(16) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    window_size INT NOT NULL DEFAULT 0,
    unconfirmed INT NOT NULL DEFAULT 0,
    behind BIGINT NULL,
    last_error TEXT NULL,
    last_error_at DATETIME(6) NULL,
    seen_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    PRIMARY KEY (role, name, instance)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
