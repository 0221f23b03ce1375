-- Since when a consumer has taken an event type, for the checks: an event that was saved before is none that it should have had. NULL is
-- as long as the consumer is registered: so it is of rows that a release before this one has written.
ALTER TABLE bc_consumer_type ADD COLUMN IF NOT EXISTS registered_at timestamptz NULL;
