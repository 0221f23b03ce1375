-- The ids of keyed events: each is saved once, also after its row has gone. The engine locks none of these rows, so
-- no producer waits for it.
CREATE TABLE IF NOT EXISTS bc_event_key (
    event_id varchar(64) NOT NULL PRIMARY KEY,
    removed_at timestamptz NULL
);
CREATE INDEX IF NOT EXISTS bc_event_key_idx_removed_at ON bc_event_key (removed_at) WHERE removed_at IS NOT NULL;
