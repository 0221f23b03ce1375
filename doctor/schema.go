package doctor

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/bluecone-go/bluecone/internal/store/view"
	"github.com/bluecone-go/bluecone/migrations"
)

// schemaChecks compare the tables with what the code needs of them.
func schemaChecks() []check {
	return []check{
		{name: "migrations", fine: "all applied", look: pending},
		{name: "engine", dialects: "mysql", fine: "InnoDB", look: engine},
		{name: "collation", dialects: "mysql", fine: "keys compare byte by byte", look: collation},
		{name: "key length", dialects: "mysql postgres", fine: "keys fit", look: keyLength},
		{name: "indexes", fine: "all there", look: indexes},
	}
}

const (
	upRemedy  = "call migrations.Up, or apply the files of migrations/ by hand"
	ddlRemedy = "compare the table with the files of migrations/ and alter it"
)

func pending(ctx context.Context, x *exam) ([]Finding, error) {
	all, err := migrations.Status(ctx, x.db)
	if err != nil {
		return nil, err
	}
	var missing []string
	for _, m := range all {
		if m.AppliedAt.IsZero() {
			missing = append(missing, fmt.Sprintf("%04d_%s", m.Version, m.Name))
		}
	}
	if len(missing) == 0 {
		return nil, nil
	}
	x.isEmpty = len(missing) == len(all)
	return fail("migrations_missing", "not applied: {missing}", upRemedy, values{"missing": strings.Join(missing, ", ")}), nil
}

func engine(ctx context.Context, x *exam) ([]Finding, error) {
	tables, err := view.OtherEngines(ctx, x.sql)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, t := range tables {
		found = append(found, fail("engine", "{table} is in {engine}, which has no transactions", "ALTER TABLE {table} ENGINE = InnoDB",
			values{"table": t.Table, "engine": t.Property})...)
	}
	return found, nil
}

// collation finds key columns in which two names that differ would be one.
func collation(ctx context.Context, x *exam) ([]Finding, error) {
	columns, err := view.OtherCollations(ctx, x.sql)
	if err != nil {
		return nil, err
	}
	var found []Finding
	for _, c := range columns {
		found = append(found,
			fail("collation", "{table}.{column} has the collation {collation}: names that differ only by case or accents would be one", ddlRemedy,
				values{"table": c.Table, "column": c.Name, "collation": c.Property})...)
	}
	return found, nil
}

func keyLength(ctx context.Context, x *exam) ([]Finding, error) {
	lengths, err := view.KeyLengths(ctx, x.sql)
	if err != nil {
		return nil, err
	}
	least := map[string]int64{"event_id": 64, "consumer_name": 128, "aggregate_id": 128}
	var found []Finding
	for _, l := range lengths {
		if have := l.Characters; have.Valid && have.Int64 < least[l.Column] {
			found = append(found, fail("key_short", "{table}.{column} holds {have} characters instead of {least}", ddlRemedy,
				values{
					"table": l.Table, "column": l.Column, "have": strconv.FormatInt(have.Int64, 10),
					"least": strconv.FormatInt(least[l.Column], 10),
				})...)
		}
	}
	return found, nil
}

// needed are the indexes without which the engine scans tables, or loses its uniqueness.
func needed(dialectName string) map[view.Table][]string {
	ofOrder := []string{"idx_waiting", "idx_dead"}
	if dialectName == "mysql" {
		ofOrder = []string{"idx_open_aggregate"}
	}
	return map[view.Table][]string{
		view.Events:     {"uk_event_id", "idx_status_next_retry", "idx_aggregate", "idx_in_hand", "idx_trace_id", "idx_event_key"},
		view.Deliveries: append([]string{"uk_event_consumer", "idx_consumer_due"}, ofOrder...),
	}
}

func indexes(ctx context.Context, x *exam) ([]Finding, error) {
	var found []Finding
	for _, table := range []view.Table{view.Events, view.Deliveries} {
		there, err := view.Indexes(ctx, x.sql, table)
		if err != nil {
			return nil, err
		}
		for _, index := range needed(x.d.Name)[table] {
			name := index
			if x.d.Name != "mysql" {
				name = string(table) + "_" + index
			}
			if !slices.Contains(there, name) {
				found = append(found, fail("index_missing", "the index {index} of {table} is missing", ddlRemedy,
					values{"index": name, "table": string(table)})...)
			}
		}
	}
	return found, nil
}
