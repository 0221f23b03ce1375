-- What is wrong now, or was lately: one row per fingerprint of rule and subject.
CREATE TABLE IF NOT EXISTS bc_alert (
    fingerprint TEXT NOT NULL PRIMARY KEY,
    rule TEXT NOT NULL,
    subject TEXT NOT NULL,
    consumer_name TEXT NULL,
    event_type TEXT NULL,
    level TEXT NOT NULL,
    state TEXT NOT NULL,
    episode INTEGER NOT NULL DEFAULT 0,
    notices INTEGER NOT NULL DEFAULT 0,
    reminders INTEGER NOT NULL DEFAULT 0,
    occurrences INTEGER NOT NULL DEFAULT 0,
    says TEXT NOT NULL,
    remedy TEXT NOT NULL,
    since_at TEXT NOT NULL,
    first_seen_at TEXT NOT NULL,
    last_seen_at TEXT NOT NULL,
    next_notice_at TEXT NULL,
    resolved_at TEXT NULL,
    lock_version INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS bc_alert_idx_state ON bc_alert (state, last_seen_at);

-- The messages about it, one row per sink: written with the state, sent afterwards, until somebody has it.
CREATE TABLE IF NOT EXISTS bc_alert_message (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    fingerprint TEXT NOT NULL,
    notice INTEGER NOT NULL,
    sink TEXT NOT NULL,
    kind TEXT NOT NULL,
    level TEXT NOT NULL,
    occurrences INTEGER NOT NULL,
    says TEXT NOT NULL,
    since_at TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'WAITING',
    attempts INTEGER NOT NULL DEFAULT 0,
    next_retry_at TEXT NOT NULL,
    locked_by TEXT NULL,
    lock_version INTEGER NOT NULL DEFAULT 0,
    last_error TEXT NULL,
    created_at TEXT NOT NULL,
    sent_at TEXT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS bc_alert_message_uk_notice_sink ON bc_alert_message (fingerprint, notice, sink);
CREATE INDEX IF NOT EXISTS bc_alert_message_idx_state_sink ON bc_alert_message (state, sink, id);
