-- Since when a consumer has taken an event type, for the checks: an event that was saved before is none that it should have had. NULL is
-- as long as the consumer is registered: so it is of rows that a release before this one has written.
SET @bc = (SELECT CASE COUNT(*) WHEN 0 THEN 'ALTER TABLE bc_consumer_type ADD COLUMN registered_at DATETIME(6) NULL' ELSE 'DO 0' END
    FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'bc_consumer_type' AND column_name = 'registered_at');
PREPARE bc FROM @bc;
EXECUTE bc;
DEALLOCATE PREPARE bc;
