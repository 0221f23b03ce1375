package testdb

import "testing"

// Column is a column of one of the library's tables.
type Column struct {
	Table string `bun:"table_name"`
	Name  string
}

// SQLiteNumbers lists the columns of numbers that SQLite lets hold a text: all but the primary keys.
func SQLiteNumbers(t testing.TB) []Column {
	t.Helper()
	return sqliteColumns(t, "p.type = 'INTEGER' AND p.pk = 0")
}

// SQLiteTexts lists the columns of texts, which SQLite lets be of any length.
func SQLiteTexts(t testing.TB) []Column {
	t.Helper()
	return sqliteColumns(t, "p.type = 'TEXT'")
}

func sqliteColumns(t testing.TB, where string) (columns []Column) {
	t.Helper()
	err := Open(t, "sqlite").NewRaw("SELECT m.name AS table_name, p.name FROM sqlite_master m, pragma_table_info(m.name) p "+
		"WHERE m.type = 'table' AND m.name LIKE 'bc@_%' ESCAPE '@' AND "+where).Scan(t.Context(), &columns)
	if err != nil || len(columns) < 40 {
		t.Fatalf("the columns of the tables: %d, %v", len(columns), err)
	}
	return columns
}
