-- What relays and inboxes know of their brokers, one row for each instance of each.
CREATE TABLE IF NOT EXISTS bc_broker (
    role varchar(16) NOT NULL,
    name varchar(128) NOT NULL,
    instance varchar(64) NOT NULL,
    broker varchar(255) NOT NULL,
    state varchar(16) NOT NULL,
    window_size integer NOT NULL DEFAULT 0,
    unconfirmed integer NOT NULL DEFAULT 0,
    behind bigint NULL,
    last_error text NULL,
    last_error_at timestamptz NULL,
    seen_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    PRIMARY KEY (role, name, instance)
);
