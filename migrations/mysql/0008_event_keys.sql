-- The ids of keyed events: each is saved once, also after its row has gone. The engine locks none of these rows, so
-- no producer waits for it, and the gaps between them are nobody else's.
CREATE TABLE IF NOT EXISTS bc_event_key (
    event_id VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    removed_at DATETIME(6) NULL,
    KEY idx_removed_at (removed_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
