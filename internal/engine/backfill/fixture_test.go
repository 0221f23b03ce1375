package backfill_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/engine/backfill"
	"github.com/bluecone-go/bluecone/internal/handler"
	"github.com/bluecone-go/bluecone/internal/roomtest"
	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// beginning is before all that was ever saved.
func beginning() time.Time { return time.UnixMicro(1) }

// process has the consumer C, which is new and wants a part of the past.
type process struct {
	*roomtest.Room
	*backfill.Backfills
	startFrom time.Time
}

// newProcess has registered nobody.
func newProcess(t *testing.T, db *bun.DB, startFrom time.Time) *process {
	t.Helper()
	r := roomtest.New(t, db, "me", handler.Config{StartFrom: startFrom, Concurrency: 1}, false)
	old := handler.NewConsumer(r.Registrations, "Old", "Old", handler.Config{})
	return &process{Room: r, startFrom: startFrom, Backfills: backfill.New(backfill.Config{
		DB: db, Dialect: r.Dialect, Statements: r.Statements, Log: r.Log, Logger: r.Logger,
		Consumers: append(r.Registrations.ByName(), old), Limit: roomtest.Lease, Settler: r.Settler, Meter: r.Meter, Roster: r.Roster,
		Lanes: r.Lanes, Budget: r.Budget, Outage: r.Outage,
	})}
}

// register writes C into the registry, with its backfill if it was not registered before, and reads it.
func (p *process) register() *process {
	p.T.Helper()
	all := []store.Announcement{{Key: "C", Name: "C", Types: []string{roomtest.EventType}, StartFrom: p.startFrom}}
	require.NoError(p.T, p.Known.Announce(p.T.Context(), p.DB, all))
	require.NoError(p.T, p.Roster.Refresh(p.T.Context()))
	return p
}

// calls waits until the lanes have nothing to do, and returns the events that the handler of C was called with.
func (p *process) calls() []string {
	p.T.Helper()
	testdb.Eventually(p.T, p.Lanes.AreIdle, "the lanes are idle")
	return p.Calls()
}

// sent adds events that were delivered to others, all of one aggregate.
func (p *process) sent(ids ...string) {
	p.T.Helper()
	for chunk := range slices.Chunk(ids, 100) {
		rows := make([]string, len(chunk))
		var args []any
		for i, id := range chunk {
			rows[i] = "('A', 'a', ?, ?, '\"it\"', 'SENT', 1)"
			args = append(args, roomtest.EventType, id)
		}
		p.Exec("INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload, status, lock_version) VALUES "+
			strings.Join(rows, ", "), args...)
	}
}

// set changes the row of an event.
func (p *process) set(id, columns string, args ...any) {
	p.T.Helper()
	p.Exec("UPDATE bc_outbox_event SET "+columns+" WHERE event_id = ?", append(args, id)...)
}

// pause lets C start nothing, or lets it go on.
func (p *process) pause(is bool) {
	p.T.Helper()
	until, args := "NULL", []any{}
	if is {
		until, args = p.Dialect.After, []any{dialect.Micro(time.Hour)}
	}
	p.Exec("UPDATE bc_consumer SET paused_until = "+until+" WHERE name = 'C'", args...)
	require.NoError(p.T, p.Roster.Refresh(p.T.Context()))
}

// given are the events of which C has a delivery, in order.
func (p *process) given() []string {
	p.T.Helper()
	given := []string{}
	require.NoError(p.T, p.DB.NewRaw("SELECT event_id FROM bc_event_consume_log WHERE consumer_name = 'C' ORDER BY outbox_id").
		Scan(p.T.Context(), &given))
	return given
}

// step does one step.
func (p *process) step() backfill.Result {
	p.T.Helper()
	did, err := p.Step(p.T.Context())
	require.NoError(p.T, err)
	return did
}

// operation is where the backfill of C stands.
func (p *process) operation() string {
	p.T.Helper()
	var state string
	var seen, done, passed int
	require.NoError(p.T, p.DB.QueryRowContext(p.T.Context(), "SELECT state, seen, done, passed FROM bc_bulk_operation "+
		"WHERE consumer_name = 'C'").Scan(&state, &seen, &done, &passed))
	return fmt.Sprintf("%s: %d seen, %d given, %d passed", state, seen, done, passed)
}

// numbered are the names of n events.
func numbered(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("e%04d", i)
	}
	return ids
}
