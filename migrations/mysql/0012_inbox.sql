-- What an inbox has landed, one row for each partition of the broker, and which instance has the partition for itself.
CREATE TABLE IF NOT EXISTS bc_inbox (
    inbox VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    partition_name VARCHAR(200) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
    landed BIGINT NOT NULL DEFAULT 0,
    duplicates BIGINT NOT NULL DEFAULT 0,
    undecodable BIGINT NOT NULL DEFAULT 0,
    last_offset VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    owner VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
    owned_until DATETIME(6) NULL,
    updated_at DATETIME(6) NOT NULL DEFAULT (UTC_TIMESTAMP(6)),
    PRIMARY KEY (inbox, partition_name)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
