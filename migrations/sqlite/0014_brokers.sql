-- What relays and inboxes know of their brokers, one row for each instance of each.
CREATE TABLE IF NOT EXISTS bc_broker (
    role TEXT NOT NULL,
    name TEXT NOT NULL,
    instance TEXT NOT NULL,
    broker TEXT NOT NULL,
    state TEXT NOT NULL,
    window_size INTEGER NOT NULL DEFAULT 0,
    unconfirmed INTEGER NOT NULL DEFAULT 0,
    behind INTEGER NULL,
    last_error TEXT NULL,
    last_error_at TEXT NULL,
    seen_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
    PRIMARY KEY (role, name, instance)
);
