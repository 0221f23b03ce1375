-- Tables of bluecone for SQLite 3.35 or newer. Times are UTC text of fixed width, so that they compare.

-- Events, written in the transaction of the change that caused them.
CREATE TABLE IF NOT EXISTS bc_outbox_event (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant_id INTEGER NULL,
    store_id INTEGER NULL,
    aggregate_type TEXT NOT NULL,
    aggregate_id TEXT NOT NULL,
    event_type TEXT NOT NULL,
    event_id TEXT NOT NULL,
    event_payload TEXT NOT NULL,
    event_metadata TEXT NULL,
    schema_version INTEGER NOT NULL DEFAULT 1,
    status TEXT NOT NULL DEFAULT 'NEW',
    retry_count INTEGER NOT NULL DEFAULT 0,
    max_retry_count INTEGER NOT NULL DEFAULT 10,
    next_retry_at TEXT NULL,
    locked_by TEXT NULL,
    lock_version INTEGER NOT NULL DEFAULT 0,
    last_error TEXT NULL,
    created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
    updated_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
    sent_at TEXT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS bc_outbox_event_uk_event_id ON bc_outbox_event (event_id);
CREATE INDEX IF NOT EXISTS bc_outbox_event_idx_status_next_retry ON bc_outbox_event (status, next_retry_at, id);
CREATE INDEX IF NOT EXISTS bc_outbox_event_idx_aggregate ON bc_outbox_event (aggregate_type, aggregate_id, id);
CREATE INDEX IF NOT EXISTS bc_outbox_event_idx_open_aggregate ON bc_outbox_event (aggregate_type, aggregate_id, id) WHERE status <> 'SENT';

-- One row per (consumer, event): what makes an effect happen once.
CREATE TABLE IF NOT EXISTS bc_event_consume_log (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant_id INTEGER NULL,
    consumer_name TEXT NOT NULL,
    event_id TEXT NOT NULL,
    event_type TEXT NOT NULL,
    status TEXT NOT NULL DEFAULT 'SUCCESS',
    idempotency_key TEXT NULL,
    consume_result TEXT NULL,
    error_message TEXT NULL,
    outbox_id INTEGER NULL,
    aggregate_type TEXT NULL,
    aggregate_id TEXT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    next_retry_at TEXT NULL,
    locked_by TEXT NULL,
    lock_version INTEGER NOT NULL DEFAULT 0,
    consumed_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
    created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
    updated_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')
);
CREATE UNIQUE INDEX IF NOT EXISTS bc_event_consume_log_uk_consumer_event ON bc_event_consume_log (consumer_name, event_id);
CREATE INDEX IF NOT EXISTS bc_event_consume_log_idx_idempotency_key ON bc_event_consume_log (idempotency_key);
CREATE INDEX IF NOT EXISTS bc_event_consume_log_idx_consumer_due ON bc_event_consume_log (consumer_name, status, next_retry_at, id);
CREATE INDEX IF NOT EXISTS bc_event_consume_log_idx_event_id ON bc_event_consume_log (event_id);

-- Events that retention has moved out of the way.
CREATE TABLE IF NOT EXISTS bc_outbox_event_archive (
    id INTEGER PRIMARY KEY,
    tenant_id INTEGER NULL,
    store_id INTEGER NULL,
    aggregate_type TEXT NOT NULL,
    aggregate_id TEXT NOT NULL,
    event_type TEXT NOT NULL,
    event_id TEXT NOT NULL,
    event_payload TEXT NOT NULL,
    event_metadata TEXT NULL,
    schema_version INTEGER NOT NULL DEFAULT 1,
    status TEXT NOT NULL DEFAULT 'NEW',
    retry_count INTEGER NOT NULL DEFAULT 0,
    max_retry_count INTEGER NOT NULL DEFAULT 10,
    next_retry_at TEXT NULL,
    locked_by TEXT NULL,
    lock_version INTEGER NOT NULL DEFAULT 0,
    last_error TEXT NULL,
    created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
    updated_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
    sent_at TEXT NULL,
    archived_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')
);
CREATE INDEX IF NOT EXISTS bc_outbox_event_archive_idx_event_id ON bc_outbox_event_archive (event_id);
CREATE INDEX IF NOT EXISTS bc_outbox_event_archive_idx_aggregate ON bc_outbox_event_archive (aggregate_type, aggregate_id, id);

-- Deliveries of archived events.
CREATE TABLE IF NOT EXISTS bc_event_consume_log_archive (
    id INTEGER PRIMARY KEY,
    tenant_id INTEGER NULL,
    consumer_name TEXT NOT NULL,
    event_id TEXT NOT NULL,
    event_type TEXT NOT NULL,
    status TEXT NOT NULL DEFAULT 'SUCCESS',
    idempotency_key TEXT NULL,
    consume_result TEXT NULL,
    error_message TEXT NULL,
    outbox_id INTEGER NULL,
    aggregate_type TEXT NULL,
    aggregate_id TEXT NULL,
    attempts INTEGER NOT NULL DEFAULT 0,
    next_retry_at TEXT NULL,
    locked_by TEXT NULL,
    lock_version INTEGER NOT NULL DEFAULT 0,
    consumed_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
    created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
    updated_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
    archived_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')
);
CREATE INDEX IF NOT EXISTS bc_event_consume_log_archive_idx_event_id ON bc_event_consume_log_archive (event_id);

-- Consumers that some instance has registered, and whether they are paused.
CREATE TABLE IF NOT EXISTS bc_consumer (
    name TEXT NOT NULL PRIMARY KEY,
    event_types TEXT NOT NULL,
    aliases TEXT NOT NULL,
    paused_until TEXT NULL,
    paused_by TEXT NULL,
    pause_reason TEXT NULL,
    registered_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
    seen_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')
);

-- Attempts that did not succeed.
CREATE TABLE IF NOT EXISTS bc_delivery_attempt (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    consumer_name TEXT NOT NULL,
    event_id TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    error_message TEXT NULL,
    instance TEXT NOT NULL,
    duration_us INTEGER NOT NULL,
    created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')
);
CREATE INDEX IF NOT EXISTS bc_delivery_attempt_idx_event_consumer ON bc_delivery_attempt (event_id, consumer_name);
CREATE INDEX IF NOT EXISTS bc_delivery_attempt_idx_created_at ON bc_delivery_attempt (created_at);

-- What operators did, and why.
CREATE TABLE IF NOT EXISTS bc_audit_log (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    target TEXT NOT NULL,
    reason TEXT NOT NULL,
    details TEXT NULL,
    created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')
);
CREATE INDEX IF NOT EXISTS bc_audit_log_idx_target ON bc_audit_log (target);
CREATE INDEX IF NOT EXISTS bc_audit_log_idx_created_at ON bc_audit_log (created_at);

-- Who runs a scheduled job now, and when it was last due.
CREATE TABLE IF NOT EXISTS bc_job_lease (
    job_code TEXT NOT NULL PRIMARY KEY,
    locked_by TEXT NULL,
    locked_until TEXT NULL,
    lock_version INTEGER NOT NULL DEFAULT 0,
    last_due_at TEXT NULL,
    last_started_at TEXT NULL,
    last_finished_at TEXT NULL,
    last_status TEXT NULL
);

-- History of job runs.
CREATE TABLE IF NOT EXISTS bc_job_run (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    job_code TEXT NOT NULL,
    instance TEXT NOT NULL,
    status TEXT NOT NULL,
    started_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
    finished_at TEXT NULL,
    duration_us INTEGER NULL,
    counts TEXT NULL,
    error_message TEXT NULL
);
CREATE INDEX IF NOT EXISTS bc_job_run_idx_job_code ON bc_job_run (job_code, id);
