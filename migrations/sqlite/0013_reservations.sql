-- Events that a caller of the ledger has reserved: nobody sees them until they are confirmed.
CREATE TABLE IF NOT EXISTS bc_reservation (
    token TEXT NOT NULL PRIMARY KEY,
    event_id TEXT NOT NULL UNIQUE,
    caller TEXT NOT NULL,
    event_type TEXT NOT NULL,
    state TEXT NOT NULL,
    event TEXT NOT NULL,
    check_url TEXT NOT NULL DEFAULT '',
    expires_at TEXT NOT NULL,
    next_check_at TEXT NULL,
    checks INTEGER NOT NULL DEFAULT 0,
    last_error TEXT NULL,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS bc_reservation_idx_next_check ON bc_reservation (next_check_at) WHERE next_check_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS bc_reservation_idx_updated ON bc_reservation (updated_at);
