package main

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/chaos"
	"github.com/bluecone-go/bluecone/internal/dbserver"
)

// fault is one of a schedule, which is a pure function of its seed.
type fault struct {
	kind  string
	after time.Duration // since the one before was over
	lasts time.Duration
	node  int // the instance it befalls, -1 for all
	arg   int // how bad it is, 0 to 99
}

func (f fault) String() string {
	who := ""
	if nemeses[f.kind].oneNode {
		who = " of instance " + fmt.Sprint(f.node)
		if f.node < 0 {
			who = " of all instances"
		}
	}
	return fmt.Sprintf("%s%s for %v", f.kind, who, f.lasts)
}

// nemesis does a fault. What it returns ends it.
type nemesis struct {
	do      func(w *world, f fault) (end func() error, err error)
	oneNode bool
	least   time.Duration              // that makes sense
	needs   func(database string) bool // of this machine
}

// nemeses are all kinds of faults.
var nemeses = map[string]nemesis{
	"instance killed":              {do: killNode, oneNode: true},
	"instance frozen":              {do: freezeNode, oneNode: true, least: 6 * time.Second}, // longer than the lease
	"cut before COMMIT":            {do: breakProxy(chaos.CutBeforeCommit), oneNode: true},
	"cut after COMMIT":             {do: breakProxy(chaos.CutAfterCommit), oneNode: true},
	"black hole":                   {do: breakProxy(chaos.BlackHole), oneNode: true},
	"delay":                        {do: breakProxy(chaos.Delay), oneNode: true},
	"reset":                        {do: breakProxy(chaos.Reset), oneNode: true},
	"database killed":              {do: killDatabase},
	"database frozen":              {do: freezeDatabase},
	"database read-only":           {do: readOnly},
	"connections used up":          {do: useUpConnections},
	"deadlock storm":               {do: deadlockStorm},
	"rows locked":                  {do: lockRows},
	"database clock +90 s":         {do: moveClock(90 * time.Second), needs: canFakeTime, least: 1500 * time.Millisecond}, // it stays ahead
	"database clock -2 h and back": {do: moveClock(-2 * time.Hour), needs: canFakeTime, least: 2500 * time.Millisecond},
	"disk full":                    {do: fillDisk, needs: func(string) bool { return dbserver.CanMount() }, least: 1500 * time.Millisecond},
}

// kinds are those that this machine can do to a database, in order.
func kinds(database string) (names []string) {
	for name, n := range nemeses {
		if n.needs == nil || n.needs(database) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// schedule draws faults for at least so long, in rounds: every kind once in each, in any order. They
// last up to longest.
func schedule(seed uint64, kinds []string, length, longest time.Duration) (faults []fault) {
	rng := rand.New(rand.NewPCG(seed, 0))
	var sum time.Duration
	for sum < length {
		for _, i := range rng.Perm(len(kinds)) {
			f := fault{kind: kinds[i], node: rng.IntN(nodes+1) - 1, arg: rng.IntN(100)}
			f.after = longest/20 + time.Duration(rng.Int64N(int64(longest/8)))
			f.lasts = max(longest/8+time.Duration(rng.Int64N(int64(longest-longest/8))), nemeses[f.kind].least).Round(time.Millisecond)
			if n := nemeses[f.kind]; n.oneNode && n.least > 0 && f.node < 0 {
				f.node = 0 // somebody must be there to take over
			}
			faults = append(faults, f)
			sum += f.after + f.lasts
		}
	}
	return faults
}

func (f fault) victims() []int {
	if f.node >= 0 {
		return []int{f.node}
	}
	return []int{0, 1, 2}
}

func killNode(w *world, f fault) (func() error, error) {
	for _, i := range f.victims() {
		w.node(i).end(syscall.SIGKILL)
	}
	return func() error {
		for _, i := range f.victims() {
			w.startNode(i)
		}
		return nil
	}, nil
}

func freezeNode(w *world, f fault) (func() error, error) {
	p := w.node(f.node).cmd.Process
	return func() error { return p.Signal(syscall.SIGCONT) }, p.Signal(syscall.SIGSTOP)
}

func breakProxy(kind chaos.Kind) func(*world, fault) (func() error, error) {
	return func(w *world, f fault) (func() error, error) {
		for _, i := range f.victims() {
			w.proxies[i].Break(chaos.Fault{Kind: kind, Every: 1 + f.arg%4, Delay: time.Duration(5+f.arg) * time.Millisecond})
		}
		return func() error {
			for _, i := range f.victims() {
				w.proxies[i].Repair()
			}
			return nil
		}, nil
	}
}

func killDatabase(w *world, _ fault) (func() error, error) {
	w.server.Kill()
	return w.server.Restart, nil
}

func freezeDatabase(w *world, _ fault) (func() error, error) {
	w.server.Freeze()
	return func() error { w.server.Thaw(); return nil }, nil
}

func fillDisk(w *world, _ fault) (func() error, error) {
	return w.server.FreeDisk, w.server.FillDisk() // if that ends the server, it is started again
}

// moveClock moves the clock forward for good, or back for a while. A clock that comes back from the
// future makes what was leased there wait as long; a leap forward makes all leases expire.
func moveClock(by time.Duration) func(*world, fault) (func() error, error) {
	return func(w *world, _ fault) (func() error, error) {
		if by > 0 {
			return func() error { return nil }, w.server.SetClock(time.Duration(w.ahead.Add(int64(by))))
		}
		was := time.Duration(w.ahead.Load())
		return func() error { return w.server.SetClock(was) }, w.server.SetClock(was + by)
	}
}

// readOnly refuses writes, as a server does that has become a replica: at both ends it ends the sessions.
func readOnly(w *world, _ fault) (func() error, error) {
	set := func(on string) error {
		statements := []string{"ALTER DATABASE shop SET default_transaction_read_only = " + on}
		if w.dialect == "mysql" { // statements may wait for each other, and it for them
			statements = []string{"SET SESSION lock_wait_timeout = 1", "SET GLOBAL read_only = " + on, "SET SESSION lock_wait_timeout = DEFAULT"}
		}
		for try := 1; ; try++ {
			w.endSessions(context.Background(), nil)
			err := w.inSession(statements...)
			if err == nil || try == 60 {
				w.endSessions(context.Background(), nil)
				return err
			}
		}
	}
	return func() error { return set("OFF") }, set("ON")
}

// inSession runs statements on one connection, and closes it if one fails: its settings are not everybody's.
func (w *world) inSession(statements ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	conn, err := w.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	for _, s := range statements {
		if _, err := conn.ExecContext(ctx, s); err != nil {
			_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // the way to close it
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

// during runs work in the background until the fault ends, on a context that ends with it.
func during(work ...func(ctx context.Context)) func() error {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for _, w := range work {
		wg.Go(func() { w(ctx) })
	}
	return func() error { cancel(); wg.Wait(); return nil }
}

// useUpConnections takes every connection there is, those of the instances too.
func useUpConnections(w *world, _ fault) (func() error, error) {
	u := *w.direct
	u.User = shopUser()
	pool := w.connect(&u)
	pool.SetMaxOpenConns(2 * mostConns)
	pool.SetMaxIdleConns(2 * mostConns)
	var held []*sql.Conn
	end := during(func(ctx context.Context) {
		for ctx.Err() == nil {
			c, err := pool.DB.Conn(ctx)
			if err == nil {
				held = append(held, c)
				continue
			}
			w.endSessions(ctx, held) // so that theirs become ours
			pause(beat)
		}
	})
	return func() error {
		err := end()
		for _, c := range held {
			_ = c.Close()
		}
		return errors.Join(err, pool.Close())
	}, nil
}

// endSessions ends the sessions of the instances.
func (w *world) endSessions(ctx context.Context, but []*sql.Conn) {
	ask, list, end := "SELECT pg_backend_pid()", "SELECT pid FROM pg_stat_activity WHERE usename = 'shop'", "SELECT pg_terminate_backend(?)"
	if w.dialect == "mysql" {
		ask, list, end = "SELECT CONNECTION_ID()", "SELECT id FROM information_schema.processlist WHERE user = 'shop'", "KILL ?"
	}
	mine := make(map[int64]bool)
	for _, c := range but {
		var id int64
		if c.QueryRowContext(ctx, ask).Scan(&id) == nil {
			mine[id] = true
		}
	}
	var all []int64
	if w.db.NewRaw(list).Scan(ctx, &all) != nil {
		return
	}
	for _, id := range all {
		if !mine[id] {
			_, _ = w.db.ExecContext(ctx, end, id) // it may have ended
		}
	}
}

// deadlockStorm locks accounts two by two in any order.
func deadlockStorm(w *world, f fault) (func() error, error) {
	storm := func(ctx context.Context) {
		for ctx.Err() == nil {
			users, err := w.strings("SELECT user_id FROM demo_wallet ORDER BY user_id DESC LIMIT 8")
			if err != nil || len(users) < 2 {
				pause(beat)
				continue
			}
			rand.Shuffle(len(users), func(i, j int) { users[i], users[j] = users[j], users[i] })
			// After its clock has leapt PostgreSQL may not notice a deadlock for minutes.
			own, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
			_ = w.db.RunInTx(own, nil, func(ctx context.Context, tx bun.Tx) error { // a deadlock is what it is for
				for _, u := range users {
					if _, err := tx.ExecContext(ctx, "UPDATE demo_wallet SET available = available WHERE user_id = ?", u); err != nil {
						return err
					}
				}
				return nil
			})
			cancel()
		}
	}
	var work []func(context.Context)
	for range 2 + f.arg%4 {
		work = append(work, storm)
	}
	return during(work...), nil
}

// lockRows holds the newest rows of four tables, those that everybody needs.
func lockRows(w *world, f fault) (func() error, error) {
	tx, err := w.db.BeginTx(context.Background(), nil)
	if err != nil {
		return nil, err
	}
	for _, query := range []string{
		"SELECT id FROM bc_outbox_event ORDER BY id DESC LIMIT ? FOR UPDATE",
		"SELECT id FROM bc_event_consume_log ORDER BY id DESC LIMIT ? FOR UPDATE",
		"SELECT user_id FROM demo_wallet ORDER BY user_id DESC LIMIT ? FOR UPDATE",
		"SELECT user_id FROM demo_points ORDER BY user_id DESC LIMIT ? FOR UPDATE",
	} {
		if !lock(tx, query, 5+f.arg) {
			break // what it has is enough
		}
	}
	return func() error { _ = tx.Rollback(); return nil }, nil
}

// lock reports false if the rows could not be had soon.
func lock(tx bun.Tx, query string, rows int) bool {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var keys []string
	return tx.NewRaw(query, rows).Scan(ctx, &keys) == nil
}
