-- What an inbox has landed, one row for each partition of the broker, and which instance has the partition for itself.
CREATE TABLE IF NOT EXISTS bc_inbox (
    inbox TEXT NOT NULL,
    partition_name TEXT NOT NULL,
    landed INTEGER NOT NULL DEFAULT 0,
    duplicates INTEGER NOT NULL DEFAULT 0,
    undecodable INTEGER NOT NULL DEFAULT 0,
    last_offset TEXT NULL,
    owner TEXT NULL,
    owned_until TEXT NULL,
    updated_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
    PRIMARY KEY (inbox, partition_name)
);
