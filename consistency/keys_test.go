package consistency_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/consistency"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// keyKind is a kind of keys that databases sort in another way than Go sorts texts.
type keyKind struct {
	column map[string]string // by dialect
	count  int
	key    func(i int) string
}

func same(column string) map[string]string {
	return map[string]string{"mysql": column, "pg": column, "sqlite": column}
}

func keyKinds() map[string]keyKind {
	prefixes := []string{"a", "B", "é", "Z", "Ö", "_", "x ", "-", "?'", "ß"}
	return map[string]keyKind{
		"integers": {same("BIGINT"), 2500, func(i int) string { return fmt.Sprint(i - 1200) }},
		// beyond what a floating-point number holds exactly: as such, hundreds of them are one
		"snowflakes": {same("BIGINT"), 2500, func(i int) string { return fmt.Sprint(1<<60 + i) }},
		"decimals":   {same("DECIMAL(20,4)"), 90, func(i int) string { return fmt.Sprintf("%.2f", float64(i-45)*1.25) }},
		"texts": {
			column: map[string]string{
				"mysql": "VARCHAR(64) COLLATE utf8mb4_unicode_ci", "pg": `VARCHAR(64) COLLATE "und-x-icu"`,
				"sqlite": "TEXT COLLATE NOCASE",
			},
			count: 90,
			key:   func(i int) string { return prefixes[i%len(prefixes)] + fmt.Sprint(i) + strings.Repeat(" ", i%3) },
		},
		"UUIDs": {map[string]string{"mysql": "CHAR(36)", "pg": "UUID", "sqlite": "TEXT"}, 90, func(i int) string {
			id := uuid.NewSHA1(uuid.NameSpaceOID, []byte{byte(i)}).String()
			if i%2 == 0 {
				return strings.ToUpper(id)
			}
			return id
		}},
		"times": {map[string]string{"mysql": "DATETIME(6)", "pg": "TIMESTAMPTZ", "sqlite": "TEXT"}, 90, func(i int) string {
			return time.Date(1969, 12, 30, 0, 0, 0, i*1000, time.UTC).Add(time.Duration(i) * 7 * time.Hour).Format("2006-01-02 15:04:05.000000")
		}},
	}
}

// A check pages through keys of every kind, in the order that the database has, and sees each fact once.
func TestEveryKindOfKeys(t *testing.T) {
	t.Parallel()
	for name, kind := range keyKinds() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testdb.Each(t, func(t *testing.T, db *bun.DB) {
				d := db.Dialect().Name().String()
				exec := func(query string, args ...any) {
					t.Helper()
					_, err := db.ExecContext(t.Context(), query, args...)
					require.NoError(t, err, query)
				}
				exec("CREATE TABLE fact (k " + kind.column[d] + " NOT NULL PRIMARY KEY, at " + map[string]string{
					"mysql": "DATETIME(6)", "pg": "TIMESTAMPTZ", "sqlite": "TEXT",
				}[d] + " NOT NULL)")
				ago := func(hours int) string {
					return map[string]string{
						"mysql": fmt.Sprintf("UTC_TIMESTAMP(6) - INTERVAL %d HOUR", hours), "pg": fmt.Sprintf("now() - interval '%d hours'", hours),
						"sqlite": fmt.Sprintf("strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now', '-%d hours') || '000'", hours),
					}[d]
				}
				values := make([]string, kind.count)
				for i := range values {
					values[i] = db.QueryGen().FormatQuery("(?, "+ago(1)+")", kind.key(i))
				}
				exec("INSERT INTO fact (k, at) VALUES " + strings.Join(values, ", "))
				exec("UPDATE fact SET at = "+ago(48)+" WHERE k = ?", kind.key(0)) // older than the window
				exec("UPDATE fact SET at = "+ago(0)+" WHERE k = ?", kind.key(1))  // younger than the grace time

				seen := make(map[string]int)
				text := map[string]string{"mysql": "CAST(k AS CHAR)", "pg": "k::text", "sqlite": "CAST(k AS TEXT)"}[d]
				s, err := consistency.New(db, consistency.Config{Batch: max(kind.count/25, 7), Logger: slog.New(slog.DiscardHandler)},
					consistency.Check[string]{
						Name: "fact.missing", ReportOnly: true, Key: func(k string) string { return k },
						Find: func(ctx context.Context, db bun.IDB, q consistency.Query) (facts []string, err error) {
							err = db.NewRaw("SELECT "+text+" FROM fact WHERE ?", q.Page("at", "fact.k")).Scan(ctx, &facts)
							for _, f := range facts {
								seen[f]++
							}
							return facts, err
						},
					})
				require.NoError(t, err)
				report, err := s.RunOnce(t.Context())
				require.NoError(t, err)
				require.Equal(t, kind.count-2, report["fact.missing"].Found)
				require.Len(t, seen, kind.count-2)
			})
		})
	}
}

// A check whose pages do not begin behind the cursor ends with an error instead of going round for ever.
func TestPagesThatGoRoundAreRefused(t *testing.T) {
	t.Parallel()
	db := testdb.Open(t, "sqlite")
	for name, find := range map[string]func(q consistency.Query) []string{
		"the same page": func(consistency.Query) []string { return []string{"a", "b"} },
		"two pages": func(q consistency.Query) []string {
			if q.After == "b" {
				return []string{"c", "d"}
			}
			return []string{"a", "b"}
		},
		"no key": func(consistency.Query) []string { return []string{"a", ""} },
	} {
		s, err := consistency.New(db, consistency.Config{Batch: 2, Logger: slog.New(slog.DiscardHandler)}, consistency.Check[string]{
			Name: "fact.missing", ReportOnly: true, Key: func(k string) string { return k },
			Find: func(_ context.Context, _ bun.IDB, q consistency.Query) ([]string, error) { return find(q), nil },
		})
		require.NoError(t, err)
		_, err = s.RunOnce(t.Context())
		require.ErrorContains(t, err, "in the order of keys", name)
	}
}
