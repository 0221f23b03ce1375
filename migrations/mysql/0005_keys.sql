-- One key does for two: it keeps an effect from happening twice, and finds the deliveries of an event.
-- All consumers of an event write next to one another. On a large table this takes a while; reads and
-- writes go on.
SET @bc = (SELECT CASE COUNT(*) WHEN 0 THEN 'ALTER TABLE bc_event_consume_log ADD UNIQUE KEY uk_event_consumer (event_id, consumer_name), DROP KEY uk_consumer_event, DROP KEY idx_event_id' ELSE 'DO 0' END
    FROM information_schema.statistics WHERE table_schema = DATABASE() AND table_name = 'bc_event_consume_log' AND index_name = 'uk_event_consumer');
PREPARE bc FROM @bc;
EXECUTE bc;
DEALLOCATE PREPARE bc;
