// Package txtest is the one suite that every adapter passes: it saves events in the adapter's transactions, and handles them with
// what the adapter hands to handlers, on every database.
//
//	func TestMain(m *testing.M) { testdb.Main(m) }
//
//	func TestSuite(t *testing.T) { txtest.Run(t, txtest.Adapter[*sqlx.Tx]{Open: open}) }
//
//	func open(w *txtest.World) txtest.Door[*sqlx.Tx] { … } // see adapter/sqlxtx
//
// # Contract
//
// T is the adapter's transaction, both where an application saves and in a handler. The queries of the suite have ? for a value;
// a [Door] whose library takes the database's own placeholders rewrites them by [World.Native]. The suite makes the tables it
// needs. What a door answers is not wrapped: the suite looks for the library's errors in it.
package txtest

import (
	"context"
	"slices"
	"testing"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// Adapter is what is under test.
type Adapter[T any] struct {
	// Databases are the names, as of package testdb, of those that the adapter is for. Default: all.
	Databases []string
	// Open opens the adapter's way to the database of a world. What it opens it closes by w.T.Cleanup.
	Open func(w *World) Door[T]
}

// Door is an adapter on one database.
type Door[T any] struct {
	// Begin begins a transaction as an application does.
	Begin func(ctx context.Context) (T, error)
	// Commit and Rollback end it; a handler calls them too, and must not get away with it.
	Commit, Rollback func(ctx context.Context, tx T) error
	// Save saves in a transaction, of an application or of a handler.
	Save func(ctx context.Context, ob *outbox.Outbox, tx T, events ...bus.Event) error
	// Ways are the ways in which the library sends one statement, with an answer or without one, and meets its error: in Exec, in
	// a prepared statement, in the scan of a row, at the end of rows. One is called Exec, and takes every statement.
	Ways map[string]func(ctx context.Context, tx T, query string, args ...any) error
	// Number is the answer of a query with one row and one column.
	Number func(ctx context.Context, tx T, query string, args ...any) (int, error)
	// Nested runs fn in the library's own kind of transaction inside of another one, a savepoint: what fn has done is undone if it
	// answers an error, which Nested returns. Nil if the library has none: then the suite writes SAVEPOINT itself.
	Nested func(ctx context.Context, tx T, fn func(tx T) error) error
	// On and OnBatch are the adapter's for [Paid].
	On      func(c *bus.Consumer, fn func(ctx context.Context, tx T, m bus.Message[Paid]) error)
	OnBatch func(c *bus.Consumer, fn func(ctx context.Context, tx T, ms []bus.Message[Paid]) error)
	// NotOpen are transactions that were never begun, by what they are: Save refuses them with words that contain "open
	// transaction".
	NotOpen map[string]T
}

// Run runs the suite.
func Run[T any](t *testing.T, a Adapter[T]) {
	t.Helper()
	for _, name := range testdb.Dialects() {
		if len(a.Databases) > 0 && !slices.Contains(a.Databases, name) {
			continue
		}
		for what, test := range map[string]func(*World, Door[T]){
			"an event exists if and only if its transaction committed": savesWithItsTransaction[T],
			"part of a transaction is undone with its events":          savesInPart[T],
			"a keyed event is saved once":                              savesKeyedOnce[T],
			"no open transaction":                                      refusesWhatIsNotOpen[T],
			"an event that cannot be saved":                            refusesInvalidEvents[T],
			"one type has one handler":                                 refusesTwoHandlers[T],
			"a handler that is nil":                                    refusesNilHandlers[T],
			"a handler works":                                          handles[T],
			"a batch":                                                  handlesBatches[T],
			"follow-up events":                                         savesFollowUps[T],
			"savepoints":                                               allowsSavepoints[T],
			"the transaction ends with the handler":                    endsWithTheHandler[T],
			"a handler cannot end its transaction":                     cannotEnd[T],
			"a commit that hides is found out":                         findsOutHiddenCommits[T],
			"connections that are cut anywhere":                        survivesCuts[T],
		} {
			each(t, name+"/"+what, a, name, test)
		}
		eachFault(t, a, name)
		eachSwallow(t, a, name)
	}
}

// each runs one test in a world of its own.
func each[T any](t *testing.T, name string, a Adapter[T], database string, test func(*World, Door[T])) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		w := newWorld(t, database)
		test(w, a.Open(w))
	})
}
