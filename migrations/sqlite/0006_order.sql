-- The order question (docs/schema.md): what an aggregate has in hand, and which of its deliveries are open, each by
-- one look at an index that holds nothing else. idx_open_aggregate stays for instances of the release before.
CREATE INDEX IF NOT EXISTS bc_outbox_event_idx_in_hand ON bc_outbox_event (COALESCE(tenant_id, 0), aggregate_type, aggregate_id, id)
    WHERE status IN ('NEW', 'DISPATCHING') OR (status = 'SCHEDULED' AND lock_version > 0);
CREATE INDEX IF NOT EXISTS bc_event_consume_log_idx_waiting ON bc_event_consume_log (COALESCE(tenant_id, 0), aggregate_type, aggregate_id, consumer_name, outbox_id)
    WHERE status NOT IN ('SUCCESS', 'SKIPPED', 'DEAD');
CREATE INDEX IF NOT EXISTS bc_event_consume_log_idx_dead ON bc_event_consume_log (COALESCE(tenant_id, 0), aggregate_type, aggregate_id, consumer_name, outbox_id)
    WHERE status = 'DEAD';
