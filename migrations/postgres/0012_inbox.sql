-- What an inbox has landed, one row for each partition of the broker, and which instance has the partition for itself.
CREATE TABLE IF NOT EXISTS bc_inbox (
    inbox varchar(128) NOT NULL,
    partition_name varchar(200) NOT NULL,
    landed bigint NOT NULL DEFAULT 0,
    duplicates bigint NOT NULL DEFAULT 0,
    undecodable bigint NOT NULL DEFAULT 0,
    last_offset varchar(64) NULL,
    owner varchar(64) NULL,
    owned_until timestamptz NULL,
    updated_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    PRIMARY KEY (inbox, partition_name)
);
