package view

import (
	"context"
	"database/sql"

	"github.com/uptrace/bun"
)

// Column is a column of a table with a property as the database's catalog has it.
type Column struct{ Table, Name, Property string }

// OtherEngines lists the library's tables that MySQL keeps in another storage engine than InnoDB, each with its engine as the
// property.
func OtherEngines(ctx context.Context, r Reader) (found []Column, err error) {
	err = r.Rows(ctx, func(rows *sql.Rows) error {
		var c Column
		err := rows.Scan(&c.Table, &c.Property)
		found = append(found, c)
		return err
	}, "SELECT TABLE_NAME, ENGINE FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME "+
		"LIKE 'bc!_%' ESCAPE '!' AND ENGINE <> 'InnoDB'")
	return found, err
}

// OtherCollations lists the columns of keys that MySQL does not compare byte by byte, each with its collation.
func OtherCollations(ctx context.Context, r Reader) (found []Column, err error) {
	err = r.Rows(ctx, func(rows *sql.Rows) error {
		var c Column
		err := rows.Scan(&c.Table, &c.Name, &c.Property)
		found = append(found, c)
		return err
	}, "SELECT TABLE_NAME, COLUMN_NAME, COLLATION_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = "+
		"DATABASE() AND TABLE_NAME IN ('bc_outbox_event', 'bc_event_consume_log', 'bc_consumer') "+
		"AND COLUMN_NAME IN ('event_id', 'event_type', 'aggregate_type', 'aggregate_id', 'status', 'consumer_name', 'name', 'locked_by') AND "+
		"COLLATION_NAME <> 'utf8mb4_bin'")
	return found, err
}

// ColumnLength is how many characters a column holds.
type ColumnLength struct {
	Table, Column string
	Characters    sql.NullInt64 // NULL: as many as there are
}

// KeyLengths lists how long the keys of events and deliveries may be. SQLite, which keeps any length, has no such catalog.
func KeyLengths(ctx context.Context, r Reader) (found []ColumnLength, err error) {
	schema := map[string]string{"mysql": "DATABASE()", "postgres": "current_schema()"}[r.D.Name]
	err = r.Rows(ctx, func(rows *sql.Rows) error {
		var l ColumnLength
		err := rows.Scan(&l.Table, &l.Column, &l.Characters)
		found = append(found, l)
		return err
	}, "SELECT table_name, column_name, character_maximum_length FROM information_schema.columns WHERE table_schema = "+schema+
		" AND table_name IN ('bc_outbox_event', 'bc_event_consume_log') AND column_name IN ('event_id', 'consumer_name', 'aggregate_id')")
	return found, err
}

// Indexes lists the names of the indexes of a table.
func Indexes(ctx context.Context, r Reader, of Table) ([]string, error) {
	query := map[string]string{
		"mysql":    "SELECT DISTINCT INDEX_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME IN (?)",
		"postgres": "SELECT indexname FROM pg_indexes WHERE schemaname = current_schema() AND tablename IN (?)",
		"sqlite":   "SELECT name FROM sqlite_master WHERE type = 'index' AND tbl_name IN (?)",
	}[r.D.Name]
	return r.texts(ctx, query, bun.List([]string{string(of)}))
}
