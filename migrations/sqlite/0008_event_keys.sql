-- The ids of keyed events: each is saved once, also after its row has gone.
CREATE TABLE IF NOT EXISTS bc_event_key (
    event_id TEXT NOT NULL PRIMARY KEY,
    removed_at TEXT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS bc_event_key_idx_removed_at ON bc_event_key (removed_at) WHERE removed_at IS NOT NULL;
