// Package prepared sends statements that every event needs as prepared ones where that is safe:
// PostgreSQL parses and plans them once for each connection, which is a fifth of what saving an event
// costs it, and SQLite compiles them once, a third of what delivering a single event costs. MariaDB
// gains nothing by it, so nothing is prepared there.
//
// A prepared statement of PostgreSQL belongs to one connection of the server. A pooler that gives each transaction
// any connection it has (PgBouncer in transaction mode) loses it, and the transaction with it. So it is
// done only where the server's process is the one that the driver has been told of when it connected:
// a pooler answers for the server there. Only pgx says which one that was, whatever its
// default_query_exec_mode is; with other drivers, and behind poolers, statements go as text.
//
// The query hooks of bun see all statements alike, as text with its values.
package prepared

import (
	"context"
	"database/sql"
	"errors"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect"
)

// Statements are those of one database. They are safe for concurrent use.
type Statements struct {
	db    *bun.DB
	d     dialect.Name
	state atomic.Int32
	texts sync.Map // of queries, to *entry
	count atomic.Int32

	caching atomic.Pointer[any] // an argument that has the driver prepare a statement by itself; nil if there is none

	mu      sync.Mutex  // of who learns
	todo    atomic.Bool // something is to be found out, or prepared
	askedAt time.Time
}

const (
	unknown int32 = iota
	safe
	unsafe
)

// entry is a query that is to be sent prepared.
type entry struct {
	text string // as the database takes it
	stmt atomic.Pointer[sql.Stmt]
}

const (
	most      = 64 // texts; a query whose text is new each time is a mistake, and goes as text
	askFor    = time.Second
	askAgain  = 10 * time.Second // after a database that did not answer
	forgotten = "26000"          // SQLSTATE: no such prepared statement
	repeated  = "42P05"          // SQLSTATE: such a prepared statement exists
)

// New returns the statements of db.
func New(db *bun.DB) *Statements {
	s := &Statements{db: db, d: db.Dialect().Name()}
	switch s.d {
	case dialect.PG:
	case dialect.SQLite: // nobody stands between
		s.state.Store(safe)
	default:
		s.state.Store(unsafe)
	}
	s.todo.Store(true)
	return s
}

// On are the statements as sent by way of idb. A query must be the same text each time, with ? for
// values; a slice of int64 or string stands for the list of "IN (?)".
func (s *Statements) On(idb bun.IDB) Conn { return Conn{s, idb} }

// MayPrepare reports whether a handler's statement may be prepared: everywhere but on PostgreSQL, unless the driver is known to
// speak to the server itself.
func (s *Statements) MayPrepare() bool { return s.d != dialect.PG || s.state.Load() == safe }

// Given are the values of a handler's statement with the database's own placeholders, as the driver takes them. On PostgreSQL,
// where that is safe, pgx keeps the statement prepared for the next time.
func (s *Statements) Given(args []any) []any {
	mode := s.caching.Load()
	if len(args) == 0 || mode == nil || *mode == nil || s.state.Load() != safe || reflect.TypeOf(args[0]) == reflect.TypeOf(*mode) {
		return args
	}
	return append([]any{*mode}, args...)
}

// Notice gives up preparing if the error says that the server has not kept a statement.
func (s *Statements) Notice(err error) { _ = s.notice(err) }

// Learn finds out, once, whether statements may be prepared, and prepares those that have been asked
// for. It needs a connection: call it where no transaction is open. Otherwise it costs nothing.
func (s *Statements) Learn(ctx context.Context) {
	if !s.todo.Load() || s.state.Load() == unsafe || !s.mu.TryLock() {
		return
	}
	defer s.mu.Unlock()
	if time.Since(s.askedAt) < askAgain {
		return
	}
	s.todo.Store(false) // before looking: who asks meanwhile asks again
	if err := s.learn(ctx); err != nil {
		s.askedAt = time.Now()
		s.todo.Store(true)
	}
}

func (s *Statements) learn(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	if s.state.Load() == unknown {
		direct, mode, err := isDirect(ctx, s.db.DB)
		if err != nil {
			return err
		}
		s.caching.Store(&mode)
		if !direct {
			s.state.Store(unsafe)
			return nil
		}
		s.state.Store(safe)
	}
	var err error
	s.texts.Range(func(_, v any) bool {
		e := v.(*entry) //nolint:forcetypeassert // nothing else is in there
		if e.stmt.Load() != nil {
			return true
		}
		var stmt *sql.Stmt
		if stmt, err = s.db.DB.PrepareContext(ctx, e.text); err == nil {
			e.stmt.Store(stmt)
		}
		return err == nil
	})
	return err
}

// find returns the prepared statement of a query, or nil if it has to go as text now.
func (s *Statements) find(query string, args []any) *sql.Stmt {
	if s.state.Load() == unsafe {
		return nil
	}
	v, ok := s.texts.Load(query)
	if !ok {
		if s.count.Add(1) > most {
			return nil
		}
		v, _ = s.texts.LoadOrStore(query, &entry{text: s.bind(query, args)})
		s.todo.Store(true)
	}
	return v.(*entry).stmt.Load() //nolint:forcetypeassert // nothing else is in there
}

// notice gives up preparing if the server has not kept a statement: somebody stands between, or has
// discarded it.
func (s *Statements) notice(err error) error {
	var e interface{ SQLState() string }
	if errors.As(err, &e) && (e.SQLState() == forgotten || e.SQLState() == repeated) {
		s.state.Store(unsafe)
	}
	return err
}
