-- A consumer has one key for life: bc_consumer.name and every consumer_name hold it. display_name is what people read.
SET @bc = (SELECT CASE COUNT(*) WHEN 0 THEN 'ALTER TABLE bc_consumer ADD COLUMN display_name VARCHAR(128) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL DEFAULT ''''' ELSE 'DO 0' END
    FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = 'bc_consumer' AND column_name = 'display_name');
PREPARE bc FROM @bc;
EXECUTE bc;
DEALLOCATE PREPARE bc;

-- Aliases are no more. What was done under a former name now stands under the name that replaced it: the one seen
-- last, if nobody has gone back to the former one since. Do not run this while instances have both names:
-- migrations.Up refuses to.
CREATE TABLE IF NOT EXISTS bc_former_name (
    alias VARCHAR(160) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL PRIMARY KEY,
    heir VARCHAR(160) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
INSERT IGNORE INTO bc_former_name (alias, heir)
    SELECT j.alias, SUBSTRING_INDEX(GROUP_CONCAT(c.name ORDER BY c.seen_at DESC, c.name), ',', 1)
    FROM bc_consumer c JOIN JSON_TABLE(CASE WHEN JSON_VALID(c.aliases) THEN c.aliases ELSE '[]' END, '$[*]' COLUMNS (alias VARCHAR(128) PATH '$')) j
    LEFT JOIN bc_consumer former ON former.name = j.alias
    WHERE j.alias IS NOT NULL AND (former.name IS NULL OR former.seen_at < c.seen_at) GROUP BY j.alias;
INSERT IGNORE INTO bc_former_name (alias, heir) SELECT CONCAT(alias, '@replay'), CONCAT(heir, '@replay') FROM bc_former_name WHERE alias NOT LIKE '%@replay';

-- Where both names have a row, the former one keeps its own, and one of them is enough.
UPDATE IGNORE bc_former_name f STRAIGHT_JOIN bc_event_consume_log l FORCE INDEX (idx_consumer_due) ON l.consumer_name = f.alias SET l.consumer_name = f.heir;
UPDATE bc_former_name f STRAIGHT_JOIN bc_event_consume_log former FORCE INDEX (idx_consumer_due) ON former.consumer_name = f.alias AND former.status IN ('SUCCESS', 'SKIPPED')
    STRAIGHT_JOIN bc_event_consume_log l FORCE INDEX (uk_event_consumer) ON l.event_id = former.event_id AND l.consumer_name = f.heir AND l.status NOT IN ('SUCCESS', 'SKIPPED')
    SET l.status = 'SKIPPED', l.error_message = 'it was done under the consumer\'s former name', l.next_retry_at = NULL, l.locked_by = NULL, l.lock_version = l.lock_version + 1, l.updated_at = UTC_TIMESTAMP(6);
UPDATE bc_former_name f STRAIGHT_JOIN bc_event_consume_log l FORCE INDEX (idx_consumer_due) ON l.consumer_name = f.alias AND l.status NOT IN ('SUCCESS', 'SKIPPED')
    SET l.status = 'SKIPPED', l.error_message = 'it stands under the consumer\'s present name', l.next_retry_at = NULL, l.locked_by = NULL, l.lock_version = l.lock_version + 1, l.updated_at = UTC_TIMESTAMP(6);
UPDATE bc_former_name f STRAIGHT_JOIN bc_event_consume_log_archive l ON l.consumer_name = f.alias SET l.consumer_name = f.heir;
UPDATE bc_former_name f STRAIGHT_JOIN bc_delivery_attempt a ON a.consumer_name = f.alias SET a.consumer_name = f.heir;
DELETE t FROM bc_former_name f STRAIGHT_JOIN bc_consumer_type t ON t.consumer_name = f.alias;
DELETE c FROM bc_former_name f STRAIGHT_JOIN bc_consumer c ON c.name = f.alias;
DROP TABLE IF EXISTS bc_former_name;
