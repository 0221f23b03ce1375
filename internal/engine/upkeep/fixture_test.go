package upkeep_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/claim"
	"github.com/bluecone-go/bluecone/internal/engine/settle"
	"github.com/bluecone-go/bluecone/internal/engine/upkeep"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/roomtest"
	"github.com/bluecone-go/bluecone/internal/store"
)

const (
	name   = "here"
	me     = name + "/now" // this run
	before = name + "/before"
	grace  = 5 * time.Minute
)

// run is one run of a publisher with the consumer C. The test is its loop.
type run struct {
	*roomtest.Room
	*upkeep.Upkeep
	flights *settle.Flights
}

// newRun has done nothing yet.
func newRun(t *testing.T, db *bun.DB) *run {
	t.Helper()
	r := &run{Room: roomtest.New(t, db, me, handler.Config{Timeout: time.Hour}, true), flights: settle.NewFlights(100, 1<<20)}
	r.Upkeep = upkeep.New(upkeep.Config{
		DB: db, Dialect: r.Dialect, Statements: r.Statements, Log: r.Log, Logger: r.Logger, Name: name, Owner: me, Lease: roomtest.Lease,
		LeftGrace: grace, Rooms: upkeep.Rooms{
			Claimer: claim.NewClaimer(db, r.Dialect, r.Statements, r.Known, store.Lease{Owner: me, For: roomtest.Lease}), Settler: r.Settler,
			Settling: settle.NewSettling(settle.SettlingConfig{
				DB: db, Log: r.Log, Settler: r.Settler, Meter: r.Meter, Instance: name, Owner: me, Lease: roomtest.Lease, Flights: r.flights,
				Registry: r.Known, Outage: r.Outage, Budget: r.Budget,
			}),
			Meter: r.Meter, Lanes: r.Lanes, Roster: r.Roster, Budget: r.Budget, Outage: r.Outage,
		},
	})
	return r
}

// register writes the consumer C into the registry.
func (r *run) register() *run {
	r.T.Helper()
	all := []store.Announcement{{Key: "C", Name: "C", Types: []string{roomtest.EventType}}}
	require.NoError(r.T, r.Known.Announce(r.T.Context(), r.DB, all))
	return r
}

// save adds an event of an aggregate.
func (r *run) save(id, aggregate, status string) (outboxID int64) {
	r.T.Helper()
	r.Exec("INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload, status) "+
		"VALUES ('A', ?, ?, ?, '\"it\"', ?)", aggregate, roomtest.EventType, id, status)
	require.NoError(r.T, r.DB.QueryRowContext(r.T.Context(), "SELECT id FROM bc_outbox_event WHERE event_id = ?", id).Scan(&outboxID))
	return outboxID
}

// leased adds an event that an owner has leased for a while.
func (r *run) leased(id, owner string, length time.Duration) (outboxID int64) {
	r.T.Helper()
	outboxID = r.save(id, id, "DISPATCHING")
	r.Exec("UPDATE bc_outbox_event SET locked_by = ?, lock_version = 1, next_retry_at = "+r.Dialect.After+" WHERE event_id = ?",
		owner, dialect.Micro(length), id)
	return outboxID
}

// deliver adds an event of an aggregate and its delivery to C, which waits for so long. columns are set in its row.
func (r *run) deliver(id, aggregate string, wait time.Duration, columns string, args ...any) {
	r.T.Helper()
	row := store.Delivery{
		Consumer: "C", EventID: id, EventType: roomtest.EventType, OutboxID: r.save(id, aggregate, "FAILED"), AggregateType: "A",
		AggregateID: aggregate,
	}
	require.NoError(r.T, r.Log.Defer(r.T.Context(), r.DB, []store.Delivery{row}, wait))
	if columns != "" {
		r.Exec("UPDATE bc_event_consume_log SET "+columns+" WHERE event_id = ?", append(args, id)...)
	}
}

// isDue reports whether what waits in a table for an event is due, in so long.
func (r *run) isDue(table, id string, in time.Duration) (yes bool) {
	r.T.Helper()
	query := "SELECT CASE WHEN next_retry_at <= " + r.Dialect.After + " THEN 1 ELSE 0 END FROM " + table + " WHERE event_id = ?"
	require.NoError(r.T, r.DB.QueryRowContext(r.T.Context(), query, dialect.Micro(in), id).Scan(&yes))
	return yes
}

const (
	events     = "bc_outbox_event"
	deliveries = "bc_event_consume_log"
)
