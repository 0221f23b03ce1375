package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// Instances are the publishers in bc_instance: those that run, and for a while those that died. The table has a row for each
// process, and no index but the primary key, its name.
type Instances struct{ d dialect.Dialect }

// NewInstances returns the statements in the words of a database.
func NewInstances(d dialect.Dialect) Instances { return Instances{d} }

// Instance is what a publisher says of itself.
type Instance struct {
	Name, Run, Host, Version string
	InFlight                 int    // events
	Clock                    int64  // microseconds since the epoch, by its own clock
	IsDraining               bool   // it was told to stop
	Circuits                 string // the consumers whose circuits are not closed
}

// Announce writes that an instance runs.
func (i Instances) Announce(ctx context.Context, idb bun.IDB, of Instance) error {
	draining := 0
	if of.IsDraining {
		draining = 1
	}
	_, err := idb.ExecContext(ctx, "INSERT INTO bc_instance (name, run_id, host, version, in_flight, clock_offset_us, draining, circuits, "+
		"seen_at) VALUES (?, ?, ?, ?, ?, ? - "+i.d.Micros(i.d.Now)+", ?, ?, "+i.d.Now+")"+
		i.d.Upsert("name", "run_id", "host", "version", "in_flight", "clock_offset_us", "draining", "circuits", "seen_at"),
		of.Name, of.Run, of.Host, of.Version, of.InFlight, of.Clock, draining, orNull(of.Circuits))
	return err
}

// Remove deletes a run of an instance.
func (i Instances) Remove(ctx context.Context, idb bun.IDB, name, run string) error {
	_, err := idb.ExecContext(ctx, "DELETE FROM bc_instance WHERE name = ? AND run_id = ?", name, run)
	return err
}

// Forget deletes the instances that were last seen longer ago than age.
func (i Instances) Forget(ctx context.Context, idb bun.IDB, age time.Duration) error {
	_, err := idb.ExecContext(ctx, "DELETE FROM bc_instance WHERE seen_at < "+i.d.After, -dialect.Micro(age))
	return err
}

// RunOf is the last run of an instance by this name, unless it has ended or is about to: then it is "".
func (i Instances) RunOf(ctx context.Context, idb bun.IDB, name string) (string, error) {
	var run sql.NullString
	err := idb.QueryRowContext(ctx, "SELECT run_id FROM bc_instance WHERE name = ? AND draining = 0", name).Scan(&run)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return "", fmt.Errorf("look for a run before this one: %w", err)
	}
	return run.String, nil
}
