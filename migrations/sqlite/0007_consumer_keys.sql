-- A consumer has one key for life: bc_consumer.name and every consumer_name hold it. display_name is what people read.
ALTER TABLE bc_consumer ADD COLUMN display_name TEXT NOT NULL DEFAULT '';

-- Aliases are no more. What was done under a former name now stands under the name that replaced it: the one seen
-- last, if nobody has gone back to the former one since. Do not run this while instances have both names:
-- migrations.Up refuses to.
CREATE TABLE IF NOT EXISTS bc_former_name (alias TEXT NOT NULL PRIMARY KEY, heir TEXT NOT NULL);
INSERT OR IGNORE INTO bc_former_name (alias, heir)
    SELECT j.value, c.name
    FROM bc_consumer c JOIN json_each(CASE WHEN json_valid(c.aliases) THEN c.aliases ELSE '[]' END) j
    LEFT JOIN bc_consumer former ON former.name = j.value
    WHERE j.type = 'text' AND (former.name IS NULL OR former.seen_at < c.seen_at) ORDER BY c.seen_at DESC, c.name;
INSERT OR IGNORE INTO bc_former_name (alias, heir) SELECT alias || '@replay', heir || '@replay' FROM bc_former_name WHERE alias NOT LIKE '%@replay';

-- Where both names have a row, the former one keeps its own, and one of them is enough.
UPDATE OR IGNORE bc_event_consume_log SET consumer_name = (SELECT heir FROM bc_former_name WHERE alias = consumer_name) WHERE consumer_name IN (SELECT alias FROM bc_former_name);
UPDATE bc_event_consume_log AS l SET status = 'SKIPPED', error_message = 'it was done under the consumer''s former name', next_retry_at = NULL, locked_by = NULL, lock_version = l.lock_version + 1, updated_at = (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')
    FROM bc_former_name f JOIN bc_event_consume_log former ON former.consumer_name = f.alias AND former.status IN ('SUCCESS', 'SKIPPED')
    WHERE l.event_id = former.event_id AND l.consumer_name = f.heir AND l.status NOT IN ('SUCCESS', 'SKIPPED');
UPDATE bc_event_consume_log SET status = 'SKIPPED', error_message = 'it stands under the consumer''s present name', next_retry_at = NULL, locked_by = NULL, lock_version = lock_version + 1, updated_at = (strftime('%Y-%m-%d %H:%M:%f', 'now') || '000')
    WHERE consumer_name IN (SELECT alias FROM bc_former_name) AND status NOT IN ('SUCCESS', 'SKIPPED');
UPDATE bc_event_consume_log_archive SET consumer_name = (SELECT heir FROM bc_former_name WHERE alias = consumer_name) WHERE consumer_name IN (SELECT alias FROM bc_former_name);
UPDATE bc_delivery_attempt SET consumer_name = (SELECT heir FROM bc_former_name WHERE alias = consumer_name) WHERE consumer_name IN (SELECT alias FROM bc_former_name);
DELETE FROM bc_consumer_type WHERE consumer_name IN (SELECT alias FROM bc_former_name);
DELETE FROM bc_consumer WHERE name IN (SELECT alias FROM bc_former_name);
DROP TABLE bc_former_name;
