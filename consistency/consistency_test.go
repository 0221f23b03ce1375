package consistency_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/consistency"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// shipped says that a parcel has left.
type shipped struct {
	ParcelID string `json:"parcelId"`
}

func (shipped) EventType() string              { return "parcel.shipped" }
func (e shipped) Aggregate() (kind, id string) { return "PARCEL", e.ParcelID }
func (e shipped) IdempotencyKey() string       { return "parcel:" + e.ParcelID + ":shipped" }

func eventID(parcel string) string {
	return outbox.EventID(0, shipped{}.EventType(), shipped{parcel}.IdempotencyKey())
}

// depot is a module whose parcels imply events.
type depot struct {
	t  *testing.T
	db *bun.DB
	ob *outbox.Outbox
}

var quiet = slog.New(slog.DiscardHandler)

func newDepot(t *testing.T, db *bun.DB) *depot {
	t.Helper()
	ob, err := outbox.New(db, outbox.Config{Logger: quiet})
	require.NoError(t, err)
	d := &depot{t, db, ob}
	d.exec("CREATE TABLE parcel (id VARCHAR(32) PRIMARY KEY, status VARCHAR(16) NOT NULL, age INT NOT NULL)")
	return d
}

func (d *depot) exec(query string, args ...any) {
	d.t.Helper()
	_, err := d.db.ExecContext(context.Background(), query, args...)
	require.NoError(d.t, err)
}

func (d *depot) count(query string, args ...any) (n int) {
	d.t.Helper()
	require.NoError(d.t, d.db.QueryRowContext(context.Background(), query, args...).Scan(&n))
	return n
}

// ship adds a parcel that left so many minutes ago, with or without its event.
func (d *depot) ship(id string, minutes int, event bool) {
	d.t.Helper()
	require.NoError(d.t, d.db.RunInTx(context.Background(), nil, func(ctx context.Context, tx bun.Tx) error {
		if _, err := tx.ExecContext(ctx, "INSERT INTO parcel (id, status, age) VALUES (?, 'SHIPPED', ?)", id, minutes); err != nil {
			return err
		}
		if event {
			return d.ob.Save(ctx, tx, shipped{id})
		}
		return nil
	}))
}

func (d *depot) check() consistency.Check[string] {
	return consistency.Check[string]{
		Name: "parcel.shipped",
		Key:  func(id string) string { return id },
		Find: func(ctx context.Context, db bun.IDB, q consistency.Query) (ids []string, err error) {
			err = db.NewRaw("SELECT id FROM parcel WHERE status = 'SHIPPED' AND age <= ? AND age >= ? AND id > ? ORDER BY id LIMIT ?",
				int(q.From.Minutes()), int(q.To.Minutes()), q.After, q.Limit).Scan(ctx, &ids)
			return ids, err
		},
		Missing: func(ctx context.Context, db bun.IDB, parcels []string) ([]string, error) {
			byEvent := make(map[string]string)
			var ids []string
			for _, p := range parcels {
				byEvent[eventID(p)] = p
				ids = append(ids, eventID(p))
			}
			missing, err := d.ob.Missing(ctx, db, ids)
			for i, id := range missing {
				missing[i] = byEvent[id]
			}
			return missing, err
		},
		Repair: func(ctx context.Context, tx bun.Tx, id string) (bool, error) {
			if id == "broken" {
				return false, errors.New("its row makes no sense")
			}
			var n int
			if err := tx.QueryRowContext(ctx, "SELECT COUNT(*) FROM parcel WHERE id = ? AND status = 'SHIPPED'", id).Scan(&n); err != nil || n == 0 {
				return false, err
			}
			return true, d.ob.Save(ctx, tx, shipped{id})
		},
	}
}

func (d *depot) run(cfg consistency.Config, checks ...consistency.Checker) (consistency.Report, error) {
	d.t.Helper()
	cfg.Logger = quiet
	c, err := consistency.New(d.db, cfg, checks...)
	require.NoError(d.t, err)
	return c.RunOnce(d.t.Context())
}

// Facts in the window without an event get theirs, under its deterministic id; a late original
// changes nothing.
func TestMissingEventsAreBackfilledOnce(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		d := newDepot(t, db)
		d.ship("has-event", 60, true)
		for i := range 7 {
			d.ship(fmt.Sprintf("lost-%d", i), 60, false)
		}
		d.ship("too-young", 1, false)
		d.ship("too-old", 25*60, false)
		report, err := d.run(consistency.Config{Batch: 3}, d.check())
		require.NoError(t, err)
		require.Equal(t, 7, report["parcel.shipped"].Found)
		require.Equal(t, 7, report["parcel.shipped"].Repaired)
		require.Equal(t, "lost-0", report["parcel.shipped"].Keys[0])
		require.Equal(t, 8, d.count("SELECT COUNT(*) FROM bc_outbox_event"))
		events, err := d.ob.Events(t.Context(), outbox.Filter{EventID: eventID("lost-3")})
		require.NoError(t, err)
		require.JSONEq(t, `{"parcelId": "lost-3"}`, string(events[0].Payload), "the full event")

		report, err = d.run(consistency.Config{}, d.check())
		require.NoError(t, err)
		require.Equal(t, consistency.Result{}, report["parcel.shipped"], "nothing is left to repair")
		require.NoError(t, db.RunInTx(t.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
			return d.ob.Save(ctx, tx, shipped{"lost-3"})
		}))
		require.Equal(t, 8, d.count("SELECT COUNT(*) FROM bc_outbox_event"), "the late original is the same event")
	})
}

func TestReportOnlyRepairsNothing(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		d := newDepot(t, db)
		d.ship("lost", 60, false)
		check := d.check()
		check.ReportOnly = true
		for _, run := range []func() (consistency.Report, error){
			func() (consistency.Report, error) { return d.run(consistency.Config{ReportOnly: true}, d.check()) },
			func() (consistency.Report, error) { return d.run(consistency.Config{}, check) },
		} {
			report, err := run()
			require.NoError(t, err)
			require.Equal(t, consistency.Result{Found: 1, Keys: []string{"lost"}}, report["parcel.shipped"])
		}
		require.Zero(t, d.count("SELECT COUNT(*) FROM bc_outbox_event"))
	})
}

// So many missing events are a fault that repairs would only hide: the run stops and fails.
func TestTooManyRepairsStopTheRun(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		d := newDepot(t, db)
		for i := range 9 {
			d.ship(fmt.Sprintf("lost-%d", i), 60, false)
		}
		report, err := d.run(consistency.Config{MaxRepairs: 4, Batch: 3}, d.check())
		require.ErrorIs(t, err, consistency.ErrTooManyRepairs)
		require.Equal(t, 4, report["parcel.shipped"].Repaired)
		require.Equal(t, 4, d.count("SELECT COUNT(*) FROM bc_outbox_event"))
		require.Equal(t, 1, d.count("SELECT COUNT(*) FROM bc_job_run WHERE status = 'FAILED'"))
	})
}

// The limit is that of the run: repairs of all its checks count, and no check follows the one that has met it. The next run has as many.
func TestTheLimitOfRepairsIsForAllChecksOfARun(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		d := newDepot(t, db)
		for i := range 7 {
			d.ship(fmt.Sprintf("lost-%d", i), 60, false)
		}
		some := func(name string, first, last int) consistency.Check[string] {
			c := d.check()
			c.Name = name
			find := c.Find
			c.Find = func(ctx context.Context, db bun.IDB, q consistency.Query) ([]string, error) {
				ids, err := find(ctx, db, q)
				return slices.DeleteFunc(ids, func(id string) bool {
					return id < fmt.Sprintf("lost-%d", first) || id > fmt.Sprintf("lost-%d", last)
				}), err
			}
			return c
		}
		checks := []consistency.Checker{some("first.check", 0, 0), some("second.check", 1, 4), some("third.check", 5, 6)}
		report, err := d.run(consistency.Config{MaxRepairs: 3}, checks...)
		require.ErrorIs(t, err, consistency.ErrTooManyRepairs)
		require.ErrorContains(t, err, "second.check")
		require.Equal(t, 3, d.count("SELECT COUNT(*) FROM bc_outbox_event"))
		require.Equal(t, []int{1, 2}, []int{report["first.check"].Repaired, report["second.check"].Repaired})
		require.NotContains(t, report, "third.check", "the run has stopped")
		_, err = d.run(consistency.Config{MaxRepairs: 4}, checks...)
		require.NoError(t, err, "it repairs as many as it may")
		require.Equal(t, 7, d.count("SELECT COUNT(*) FROM bc_outbox_event"))
	})
}

// A fact whose repair fails is reported; the others are repaired. A fact that is in order again when it is its turn is settled.
func TestOneBadFactStopsNobody(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		d := newDepot(t, db)
		for _, id := range []string{"broken", "good", "returned"} {
			d.ship(id, 60, false)
		}
		check := d.check()
		missing := check.Missing
		check.Missing = func(ctx context.Context, db bun.IDB, facts []string) ([]string, error) {
			out, err := missing(ctx, db, facts)
			d.exec("UPDATE parcel SET status = 'RETURNED' WHERE id = 'returned'") // meanwhile
			return out, err
		}
		broken := d.check()
		broken.Name = "broken.check"
		broken.Find = func(context.Context, bun.IDB, consistency.Query) ([]string, error) {
			return nil, errors.New("no such table")
		}
		report, err := d.run(consistency.Config{}, broken, check)
		require.ErrorContains(t, err, "broken.check: find: no such table")
		require.ErrorContains(t, err, "fact broken: its row makes no sense")
		r := report["parcel.shipped"]
		require.Equal(t, []int{3, 1, 1, 1}, []int{r.Found, r.Repaired, r.Failed, r.Settled})
	})
}

// A panic, or runtime.Goexit, in what a check brings is an error of that fact, or of that check, and the log says where it was.
func TestOneFactThatPanicsStopsNobody(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		d := newDepot(t, db)
		for _, id := range []string{"1", "goexit", "panic", "z-last"} {
			d.ship(id, 60, false)
		}
		check, repair := d.check(), d.check().Repair
		check.Repair = func(ctx context.Context, tx bun.Tx, id string) (bool, error) {
			done, err := repair(ctx, tx, id)
			switch id {
			case "panic":
				panic("the repair fell over")
			case "goexit":
				runtime.Goexit()
			}
			return done, err
		}
		broken := d.check()
		broken.Name = "broken.check"
		broken.Find = func(context.Context, bun.IDB, consistency.Query) ([]string, error) { panic("the search fell over") }
		var said bytes.Buffer
		c, err := consistency.New(db, consistency.Config{Logger: slog.New(slog.NewTextHandler(&said, nil))}, broken, check)
		require.NoError(t, err)
		report, err := c.RunOnce(t.Context())
		for _, want := range []string{
			"broken.check: it panicked: the search fell over", "fact panic: it panicked: the repair fell over",
			"fact goexit: it panicked: runtime.Goexit",
		} {
			require.ErrorContains(t, err, want)
		}
		r := report["parcel.shipped"]
		require.Equal(t, []int{4, 2, 2}, []int{r.Found, r.Repaired, r.Failed})
		require.Equal(t, 2, d.count("SELECT COUNT(*) FROM bc_outbox_event"), "nothing is left of those that panicked")
		require.Contains(t, said.String(), "consistency_test.go:", "the stack")
	})
}

func TestOneCheckByName(t *testing.T) {
	t.Parallel()
	d := newDepot(t, testdb.Open(t, "sqlite"))
	d.ship("lost", 60, false)
	other := d.check()
	other.Name = "other.check"
	c, err := consistency.New(d.db, consistency.Config{Logger: quiet}, d.check(), other)
	require.NoError(t, err)
	report, err := c.RunOnce(t.Context(), "other.check")
	require.NoError(t, err)
	require.Len(t, report, 1)
	_, err = c.RunOnce(t.Context(), "nonsense")
	require.ErrorContains(t, err, `there is no check "nonsense"`)
}

func TestMistakesAreReportedAtOnceByName(t *testing.T) {
	t.Parallel()
	d := newDepot(t, testdb.Open(t, "sqlite"))
	long := d.check()
	long.Name, long.Window = "long.window", 8*24*time.Hour
	empty := d.check()
	empty.Name, empty.Window, empty.Grace = "empty.window", time.Minute, time.Hour
	_, err := consistency.New(d.db, consistency.Config{Cron: "x", MaxRepairs: -1, Retention: 7 * 24 * time.Hour},
		consistency.Check[int]{Name: "Bad Name"}, long, empty, d.check(), d.check())
	for _, says := range []string{
		"Config.Cron", "Config.MaxRepairs is -1", `Check.Name "Bad Name"`, "Find and Key must not be nil",
		"Check long.window: Window (or Config.ScanWindow) is 192h0m0s, longer than Config.Retention, 168h0m0s",
		"Check empty.window: Grace (or Config.Grace) is 1h0m0s, and Window (or Config.ScanWindow) only 1m0s",
		`two checks have the name "parcel.shipped"`,
	} {
		require.ErrorContains(t, err, says)
	}
}

func TestADatabaseThatIsNilHidesNoOtherMistake(t *testing.T) {
	t.Parallel()
	_, err := consistency.New(nil, consistency.Config{Batch: -1}, consistency.Check[string]{Name: "Bad Name"})
	for _, says := range []string{"db is nil", "Config.Batch is -1", `Check.Name "Bad Name"`} {
		require.ErrorContains(t, err, says)
	}
}

// The longest name of an instance runs the job on every database; a longer one would fail each run.
func TestTheNameOfAnInstanceIsLimited(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		d, name := newDepot(t, db), strings.Repeat("x", 65)
		_, err := consistency.New(db, consistency.Config{Instance: name})
		require.EqualError(t, err, `consistency.Config.Instance "`+name+`" has 65 bytes: the limit is 64`)
		_, err = d.run(consistency.Config{Instance: name[:64]})
		require.NoError(t, err)
	})
}

// The built-in checks find what no single module can see.
func TestBuiltInChecksReportTheEnginesOwnOddities(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		d := newDepot(t, db)
		b := bus.New(db, bus.Config{Logger: quiet})
		bus.On(b.Consumer("Counter", bus.ConsumerConfig{}), func(context.Context, bun.Tx, bus.Message[shipped]) error { return nil })
		p, err := outbox.NewPublisher(d.ob, b, outbox.PublisherConfig{})
		require.NoError(t, err)
		_, err = p.RunOnce(t.Context()) // registers
		require.NoError(t, err)
		past := map[string]string{
			"mysql": "UTC_TIMESTAMP(6) - INTERVAL 1 HOUR", "pg": "now() - interval '1 hour'",
			"sqlite": "(strftime('%Y-%m-%d %H:%M:%f', 'now', '-1 hours') || '000')",
		}[db.Dialect().Name().String()]
		d.exec("UPDATE bc_consumer SET registered_at = " + past)
		event := func(id, status string) {
			d.exec("INSERT INTO bc_outbox_event (aggregate_type, aggregate_id, event_type, event_id, event_payload, status) "+
				"VALUES ('PARCEL', ?, 'parcel.shipped', ?, '{}', ?)", id, id, status)
		}
		delivery := func(consumer, id, status, at string) {
			d.exec("INSERT INTO bc_event_consume_log (consumer_name, event_id, event_type, status, updated_at) "+
				"VALUES (?, ?, 'parcel.shipped', ?, "+at+")", consumer, id, status)
		}
		event("never-delivered", "SENT")
		event("odd-status", "SENDING")
		event("fine", "SENT")
		old := "'2020-01-01 00:00:00'"
		delivery("Counter", "fine", "SUCCESS", past)
		delivery("Ghost", "orphan", "PENDING", past)
		delivery("Counter", "dead", "DEAD", old)
		delivery("Counter", "just-dead", "DEAD", past)
		delivery("Counter", "odd", "SENDING", past)
		for range 2 { // they repair nothing: the second run finds the same
			report, err := d.run(consistency.Config{Grace: time.Millisecond}, consistency.BuiltIn()...)
			require.NoError(t, err)
			require.Equal(t, []string{"Counter never-delivered"}, report["bluecone.undelivered"].Keys)
			require.Equal(t, []string{"Ghost orphan"}, report["bluecone.unregistered"].Keys)
			require.Equal(t, []string{"Counter dead"}, report["bluecone.dead"].Keys)
			require.Equal(t, []string{"SENDING Counter odd", "SENDING odd-status"}, report["bluecone.unknown"].Keys)
		}
	})
}
