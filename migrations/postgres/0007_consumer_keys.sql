-- A consumer has one key for life: bc_consumer.name and every consumer_name hold it. display_name is what people read.
ALTER TABLE bc_consumer ADD COLUMN IF NOT EXISTS display_name varchar(128) NOT NULL DEFAULT '';

-- Aliases are no more. What was done under a former name now stands under the name that replaced it: the one seen
-- last, if nobody has gone back to the former one since. Do not run this while instances have both names:
-- migrations.Up refuses to.
CREATE TABLE IF NOT EXISTS bc_former_name (alias varchar(160) NOT NULL PRIMARY KEY, heir varchar(160) NOT NULL);
INSERT INTO bc_former_name (alias, heir)
    SELECT DISTINCT ON (j.alias[1]) j.alias[1], c.name
    FROM bc_consumer c CROSS JOIN LATERAL regexp_matches(c.aliases, '"([A-Za-z][A-Za-z0-9_.-]{0,127})"', 'g') AS j(alias)
    LEFT JOIN bc_consumer former ON former.name = j.alias[1]
    WHERE former.name IS NULL OR former.seen_at < c.seen_at ORDER BY j.alias[1], c.seen_at DESC, c.name
    ON CONFLICT (alias) DO NOTHING;
INSERT INTO bc_former_name (alias, heir) SELECT alias || '@replay', heir || '@replay' FROM bc_former_name WHERE alias NOT LIKE '%@replay' ON CONFLICT (alias) DO NOTHING;

-- Where both names have a row, the former one keeps its own, and one of them is enough.
UPDATE bc_event_consume_log l SET consumer_name = f.heir FROM bc_former_name f WHERE l.consumer_name = f.alias
    AND NOT EXISTS (SELECT 1 FROM bc_event_consume_log t WHERE t.event_id = l.event_id AND t.consumer_name = f.heir)
    AND NOT EXISTS (SELECT 1 FROM bc_event_consume_log t JOIN bc_former_name g ON g.alias = t.consumer_name AND g.heir = f.heir WHERE t.event_id = l.event_id AND t.id < l.id);
UPDATE bc_event_consume_log l SET status = 'SKIPPED', error_message = 'it was done under the consumer''s former name', next_retry_at = NULL, locked_by = NULL, lock_version = l.lock_version + 1, updated_at = statement_timestamp()
    FROM bc_former_name f JOIN bc_event_consume_log former ON former.consumer_name = f.alias AND former.status IN ('SUCCESS', 'SKIPPED')
    WHERE l.event_id = former.event_id AND l.consumer_name = f.heir AND l.status NOT IN ('SUCCESS', 'SKIPPED');
UPDATE bc_event_consume_log l SET status = 'SKIPPED', error_message = 'it stands under the consumer''s present name', next_retry_at = NULL, locked_by = NULL, lock_version = l.lock_version + 1, updated_at = statement_timestamp()
    FROM bc_former_name f WHERE l.consumer_name = f.alias AND l.status NOT IN ('SUCCESS', 'SKIPPED');
UPDATE bc_event_consume_log_archive l SET consumer_name = f.heir FROM bc_former_name f WHERE l.consumer_name = f.alias;
UPDATE bc_delivery_attempt a SET consumer_name = f.heir FROM bc_former_name f WHERE a.consumer_name = f.alias;
DELETE FROM bc_consumer_type t USING bc_former_name f WHERE t.consumer_name = f.alias;
DELETE FROM bc_consumer c USING bc_former_name f WHERE c.name = f.alias;
DROP TABLE bc_former_name;
