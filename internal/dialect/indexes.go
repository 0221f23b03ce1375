package dialect

import (
	"fmt"
	"strings"
)

// alongIndexes are the ways to read events and deliveries along one of their indexes, which each database has to be told in its
// own words.
type alongIndexes struct{ name string }

// InHand is a FROM and WHERE of the events p of the same aggregate as the event e that are NEW, leased, or parked, by an
// index that holds nothing else. An event that its producer has delayed is among them from its first claim on.
func (d alongIndexes) InHand(table, p, e string) string {
	cond := d.partial("(%[1]s.status IN ('NEW', 'DISPATCHING') OR (%[1]s.status = 'SCHEDULED' AND %[1]s.lock_version > 0))")
	switch d.name {
	case "mysql":
		return table + " AS " + p + " FORCE INDEX (idx_in_hand) WHERE " + p + ".in_hand = CONCAT(" + aggregateText(e) + ")"
	case "sqlite":
		p += " INDEXED BY bc_outbox_event_idx_in_hand"
	}
	name, _, _ := strings.Cut(p, " ")
	return table + " AS " + p + " WHERE " + d.sameAggregate(name, e) + " AND " + fmt.Sprintf(cond, name)
}

// AlongHand orders the events p of [Dialect.InHand] as its index does. PostgreSQL would walk along the primary key instead,
// and MySQL 9 would sort what it has found if the order did not name all columns.
func (d alongIndexes) AlongHand(p string) string {
	switch d.name {
	case "postgres":
		return p + ".id + 0"
	case "mysql":
		return p + ".in_hand, " + p + ".id"
	}
	return p + ".id"
}

// UpTo is a condition on the events p of [Dialect.InHand] for a look for the first of them that meets cond. It ends the look
// after an id, its first argument: the look finds nothing, or an event behind. MySQL cannot end a walk along an index by an id.
func (d alongIndexes) UpTo(p, cond string) string {
	if d.name == "mysql" {
		return " AND (" + p + ".id > ? OR (" + cond + "))"
	}
	return " AND " + d.AlongHand(p) + " <= ? AND " + cond
}

// SameAggregate is a FROM and WHERE of the events p of the same aggregate as the event e, in any state, by idx_aggregate.
func (d alongIndexes) SameAggregate(table, p, e string) string {
	return d.OfAggregate(table, p, e+".aggregate_type", e+".aggregate_id", "COALESCE("+e+".tenant_id, 0)")
}

// OfAggregate is the same of the aggregate with this type, id and tenant, 0 for none.
func (d alongIndexes) OfAggregate(table, p, kind, id, tenant string) string {
	from := table + " AS " + p
	switch d.name {
	case "mysql":
		from += " FORCE INDEX (idx_aggregate)"
	case "sqlite":
		from += " INDEXED BY " + table + "_idx_aggregate"
	}
	return from + " WHERE " + p + ".aggregate_type = " + kind + " AND " + p + ".aggregate_id = " + id +
		" AND COALESCE(" + p + ".tenant_id, 0) = " + tenant
}

// AlongAggregate orders the events p of [Dialect.SameAggregate]. PostgreSQL would walk along the primary key otherwise, and MySQL sort
// them.
func (d alongIndexes) AlongAggregate(p string) string {
	switch d.name {
	case "postgres":
		return p + ".id + 0"
	case "mysql":
		return p + ".aggregate_type, " + p + ".aggregate_id, " + p + ".id"
	}
	return p + ".id"
}

// MySQLOnly is a part of a statement for MySQL alone: MariaDB ignores comments for versions that only MySQL has had. MySQL sorts
// what it finds unless an ORDER BY names all columns of the index, and MariaDB if it does.
func (d alongIndexes) MySQLOnly(part string) string {
	if d.name != "mysql" {
		return ""
	}
	return "/*!80000 " + part + "*/ "
}

// Waiting is a FROM and WHERE of the deliveries l of the same aggregate as the event e that are neither done nor DEAD, by an
// index in the order of their consumers and events.
func (d alongIndexes) Waiting(table, l, e string) string {
	return d.openDeliveries(table, l, e, "waiting", l+".status NOT IN ('SUCCESS', 'SKIPPED', 'DEAD')")
}

// AlongOpen orders the deliveries l of one consumer, of those of [Dialect.Waiting] or [Dialect.Dead], as their indexes do. MySQL 9
// would sort what it has found if the order did not begin with the index's first column, and MariaDB if it named the second.
func (d alongIndexes) AlongOpen(l string) string {
	if d.name == "mysql" {
		return l + ".open_aggregate, " + l + ".outbox_id"
	}
	return l + ".outbox_id"
}

// Dead is the same for the deliveries that are DEAD.
func (d alongIndexes) Dead(table, l, e string) string {
	return d.openDeliveries(table, l, e, "dead", l+".status = 'DEAD'")
}

// Receiver is the consumer of the deliveries l of [Dialect.Waiting] and [Dialect.Dead] as their indexes have it. PostgreSQL
// would go along all that waits for the consumer instead.
func (d alongIndexes) Receiver(l string) string {
	if d.name == "postgres" {
		return "(" + l + ".consumer_name || '')"
	}
	return l + ".consumer_name"
}

func (d alongIndexes) openDeliveries(table, l, e, kind, cond string) string {
	hint := ""
	switch d.name {
	case "mysql":
		return table + " AS " + l + " FORCE INDEX (idx_open_aggregate) WHERE " + l + ".open_aggregate = CONCAT('" + kind + "/', " +
			aggregateText(e) + ")"
	case "sqlite":
		hint = " INDEXED BY " + table + "_idx_" + kind
	}
	return table + " AS " + l + hint + " WHERE " + d.sameAggregate(l, e) + " AND " + d.partial(cond)
}

// WaitingOf is a FROM and WHERE of the waiting deliveries l of the aggregate whose tenant (0 for none), type and id are the
// arguments.
func (d alongIndexes) WaitingOf(table, l string) string {
	from := d.Waiting(table, l, "\x00")
	for _, part := range []string{"COALESCE(\x00.tenant_id, 0)", "\x00.aggregate_type", "\x00.aggregate_id"} {
		from = strings.ReplaceAll(from, part, "?")
	}
	return from
}

// partial is the condition of a partial index. PostgreSQL must not see what it implies: while its statistics know of few open
// rows, it would take another partial index for cheaper, and read all that is open.
func (d alongIndexes) partial(cond string) string {
	if d.name == "postgres" {
		return "CASE WHEN " + cond + " THEN 1 END = 1"
	}
	return cond
}

// Heads is a FROM of the events e with these ids, its arguments, and how to name their aggregates in [Dialect.InHand],
// [Dialect.Waiting] and [Dialect.Dead].
//
// PostgreSQL would make the name of the aggregate anew for each of them. Of a prepared statement it makes a new plan each time,
// which takes longer than the statement, while it believes that one for any values costs more: it takes a list for ten ids, and
// an unknown LIMIT for a tenth of them.
func (d Dialect) Heads(table string, ids []int64) (from, e string, args []any) {
	if d.Name != "postgres" {
		return d.Keyed(table) + " WHERE e.id IN (?)", "e", []any{ids}
	}
	return "(SELECT k.id, k.status, k.lock_version, k.locked_by, " + fmt.Sprintf(aggregateName, "k") + " AS aggregate FROM " +
		table + " AS k WHERE k.id IN (?) LIMIT ?) AS e", "e.aggregate", []any{ids, int64(len(ids))}
}

// aggregateName is the name of a row's aggregate in the indexes of PostgreSQL.
const aggregateName = "(COALESCE(%[1]s.tenant_id, 0)::text || '/' || %[1]s.aggregate_type || '/' || %[1]s.aggregate_id)"

// sameAggregate is the condition that two rows belong to one aggregate, as the indexes have it. For PostgreSQL b may be a
// column that holds the name of the aggregate.
func (d alongIndexes) sameAggregate(a, b string) string {
	if d.name == "postgres" {
		if !strings.Contains(b, ".") {
			b = fmt.Sprintf(aggregateName, b)
		}
		return fmt.Sprintf(aggregateName, a) + " = " + b
	}
	return "COALESCE(" + a + ".tenant_id, 0) = COALESCE(" + b + ".tenant_id, 0) AND " + a + ".aggregate_type = " + b +
		".aggregate_type AND " + a + ".aggregate_id = " + b + ".aggregate_id"
}

// aggregateText are the parts of an aggregate's name in MySQL's computed columns.
func aggregateText(e string) string {
	return "COALESCE(" + e + ".tenant_id, 0), '/', " + e + ".aggregate_type, '/', " + e + ".aggregate_id"
}
