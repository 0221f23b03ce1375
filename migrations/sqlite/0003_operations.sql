-- What operators need.

-- Finds the events of a trace.
ALTER TABLE bc_outbox_event ADD COLUMN trace_id TEXT NULL;
CREATE INDEX IF NOT EXISTS bc_outbox_event_idx_trace_id ON bc_outbox_event (trace_id) WHERE trace_id IS NOT NULL;
ALTER TABLE bc_outbox_event_archive ADD COLUMN trace_id TEXT NULL;
CREATE INDEX IF NOT EXISTS bc_outbox_event_archive_idx_trace_id ON bc_outbox_event_archive (trace_id) WHERE trace_id IS NOT NULL;

-- Whether past events may be given to the consumer again.
ALTER TABLE bc_consumer ADD COLUMN replayable INTEGER NOT NULL DEFAULT 0;

-- Publishers that run, or have not ended as they should.
CREATE TABLE IF NOT EXISTS bc_instance (
    name TEXT NOT NULL PRIMARY KEY,
    host TEXT NOT NULL,
    version TEXT NOT NULL,
    in_flight INTEGER NOT NULL DEFAULT 0,
    clock_offset_us INTEGER NOT NULL DEFAULT 0,
    draining INTEGER NOT NULL DEFAULT 0,
    circuits TEXT NULL,
    started_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
    seen_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')
);

-- Operations on everything that a query selects, and how far each has come.
CREATE TABLE IF NOT EXISTS bc_bulk_operation (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    operation_id TEXT NOT NULL,
    action TEXT NOT NULL,
    request TEXT NOT NULL,
    state TEXT NOT NULL DEFAULT 'RUNNING',
    actor TEXT NOT NULL,
    reason TEXT NOT NULL,
    total INTEGER NOT NULL DEFAULT 0,
    total_more INTEGER NOT NULL DEFAULT 0,
    up_to INTEGER NOT NULL DEFAULT 0,
    seen INTEGER NOT NULL DEFAULT 0,
    done INTEGER NOT NULL DEFAULT 0,
    passed INTEGER NOT NULL DEFAULT 0,
    next_cursor TEXT NOT NULL DEFAULT '',
    error_message TEXT NULL,
    locked_by TEXT NULL,
    locked_until TEXT NULL,
    lock_version INTEGER NOT NULL DEFAULT 0,
    created_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
    updated_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'),
    finished_at TEXT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS bc_bulk_operation_uk_operation_id ON bc_bulk_operation (operation_id);
CREATE INDEX IF NOT EXISTS bc_bulk_operation_idx_state ON bc_bulk_operation (state, id);
