package view

import (
	"context"
	"database/sql"
	"time"

	"github.com/bluecone-go/bluecone/internal/store"
)

// Broker is what an instance of a relay or an inbox has written about its broker.
type Broker struct {
	Role, Name, Instance string
	Broker, State        string
	Window, Unconfirmed  int64
	Behind               int64 // -1 where nobody knows
	Error                string
	ErrorAt, SeenAt      time.Time
	SeenFor              time.Duration // since it was written
}

// IsGone reports whether the instance has missed three of its beats: it has died, or has lost the database.
func (b Broker) IsGone() bool { return b.SeenFor > 3*store.BrokerBeat }

// Brokers lists them by their names, the latest first.
func Brokers(ctx context.Context, r Reader, most, texts int) (out []Broker, err error) {
	err = r.Rows(ctx, func(rows *sql.Rows) error {
		var b Broker
		var now, failed, seen int64
		err := rows.Scan(&now, &b.Role, &b.Name, &b.Instance, &b.Broker, &b.State, &b.Window, &b.Unconfirmed, &b.Behind, &b.Error, &failed, &seen)
		b.ErrorAt, b.SeenAt, b.SeenFor = Instant(failed), Instant(seen), time.Duration(now-seen)*time.Microsecond
		out = append(out, b)
		return err
	}, "SELECT "+r.D.Micros(r.D.Now)+", "+r.name("role")+", "+r.name("name")+", "+r.name("instance")+", "+r.name("broker")+", "+
		r.name("state")+", "+r.number("window_size")+", "+r.number("unconfirmed")+", COALESCE("+r.number("behind")+", -1), "+
		orEmpty(cut("last_error", texts))+", "+orZero(r.D.Micros("last_error_at"))+", "+r.D.Micros("seen_at")+
		" FROM bc_broker ORDER BY role, name, seen_at DESC, instance LIMIT ?", most)
	return out, err
}
