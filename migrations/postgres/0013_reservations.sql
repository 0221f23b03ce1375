-- Events that a caller of the ledger has reserved: nobody sees them until they are confirmed.
CREATE TABLE IF NOT EXISTS bc_reservation (
    token varchar(64) NOT NULL PRIMARY KEY,
    event_id varchar(64) NOT NULL CONSTRAINT uk_reserved_event UNIQUE,
    caller varchar(128) NOT NULL,
    event_type varchar(128) NOT NULL,
    state varchar(16) NOT NULL,
    event text NOT NULL,
    check_url varchar(2048) NOT NULL DEFAULT '',
    expires_at timestamptz NOT NULL,
    next_check_at timestamptz NULL,
    checks integer NOT NULL DEFAULT 0,
    last_error text NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL
);
CREATE INDEX IF NOT EXISTS bc_reservation_idx_next_check ON bc_reservation (next_check_at) WHERE next_check_at IS NOT NULL;
CREATE INDEX IF NOT EXISTS bc_reservation_idx_updated ON bc_reservation (updated_at);
