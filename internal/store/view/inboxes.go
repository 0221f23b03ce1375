package view

import (
	"context"
	"database/sql"
	"time"
)

// Inbox is what one partition of a broker has brought.
type Inbox struct {
	Name, Partition, Offset         string // Offset is that of the last message, "" where the broker has none
	Owner                           string // the instance that has the partition for itself, "" for none
	Landed, Duplicates, Undecodable int64
	SeenAt                          time.Time // when an instance last asked for the partition, or landed something of it
}

// Inboxes lists the partitions of all inboxes by their names.
func Inboxes(ctx context.Context, r Reader, most int) (out []Inbox, err error) {
	err = r.Rows(ctx, func(rows *sql.Rows) error {
		var i Inbox
		var seen int64
		err := rows.Scan(&i.Name, &i.Partition, &i.Offset, &i.Owner, &i.Landed, &i.Duplicates, &i.Undecodable, &seen)
		i.SeenAt = Instant(seen)
		out = append(out, i)
		return err
	}, "SELECT "+r.name("inbox")+", "+r.name("partition_name")+", COALESCE("+r.name("last_offset")+", ''), "+
		"CASE WHEN owned_until > "+r.D.Now+" THEN COALESCE("+r.name("owner")+", '') ELSE '' END, "+
		r.number("landed")+", "+r.number("duplicates")+", "+r.number("undecodable")+", "+
		r.D.Micros("updated_at")+" FROM bc_inbox ORDER BY inbox, partition_name LIMIT ?", most)
	return out, err
}
