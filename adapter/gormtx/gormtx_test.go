package gormtx_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"
	"gorm.io/driver/mysql"
	"gorm.io/driver/postgres"
	"gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	"github.com/bluecone-go/bluecone/adapter/gormtx"
	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/needs"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/internal/txtest"
	"github.com/bluecone-go/bluecone/outbox"
)

func TestMain(m *testing.M) {
	needs.NeverEnd("gorm.io/gorm/internal/lru.NewLRU[...].func1") // it removes old statements from gorm's cache
	testdb.Main(m)
}

func TestSuite(t *testing.T) { //nolint:paralleltest // its tests are
	txtest.Run(t, txtest.Adapter[*gorm.DB]{Open: func(w *txtest.World) txtest.Door[*gorm.DB] {
		return door(w.T, openGorm(w.T, w.Dialect(), w.DB.DB, gorm.Config{}))
	}})
}

// gorm's own prepared statements change nothing. One database of each kind that prepares differently is enough.
func TestSuiteWithPrepareStmt(t *testing.T) { //nolint:paralleltest // its tests are
	txtest.Run(t, txtest.Adapter[*gorm.DB]{Databases: []string{"mysql", "postgres"}, Open: func(w *txtest.World) txtest.Door[*gorm.DB] {
		return door(w.T, openGorm(w.T, w.Dialect(), w.DB.DB, gorm.Config{PrepareStmt: true}))
	}})
}

// openGorm is gorm on a pool that there is.
func openGorm(t testing.TB, dialect string, pool gorm.ConnPool, cfg gorm.Config) *gorm.DB {
	t.Helper()
	dialector := map[string]gorm.Dialector{
		"mysql": mysql.New(mysql.Config{Conn: pool}), "postgres": postgres.New(postgres.Config{Conn: pool}),
		"sqlite": sqlite.New(sqlite.Config{Conn: pool}),
	}[dialect]
	cfg.Logger = logger.Discard
	db, err := gorm.Open(dialector, &cfg)
	require.NoError(t, err)
	return db
}

func openSQLite(t testing.TB) (*bun.DB, *gorm.DB, *outbox.Outbox) {
	t.Helper()
	bdb := testdb.Open(t, "sqlite")
	ob, err := outbox.New(bdb, outbox.Config{Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	return bdb, openGorm(t, "sqlite", bdb.DB, gorm.Config{}), ob
}

func door(t testing.TB, db *gorm.DB) txtest.Door[*gorm.DB] {
	t.Helper()
	return txtest.Door[*gorm.DB]{
		Begin: func(ctx context.Context) (*gorm.DB, error) {
			tx := db.WithContext(ctx).Begin()
			return tx, tx.Error
		},
		Commit:   func(_ context.Context, tx *gorm.DB) error { return tx.Session(&gorm.Session{}).Commit().Error },
		Rollback: func(_ context.Context, tx *gorm.DB) error { return tx.Session(&gorm.Session{}).Rollback().Error },
		Save:     gormtx.Save,
		Ways:     ways,
		Number: func(ctx context.Context, tx *gorm.DB, query string, args ...any) (n int, err error) {
			err = tx.WithContext(ctx).Raw(query, args...).Scan(&n).Error
			return n, err
		},
		Nested: func(ctx context.Context, tx *gorm.DB, fn func(tx *gorm.DB) error) error {
			return tx.WithContext(ctx).Transaction(fn)
		},
		On: func(c *bus.Consumer, fn func(context.Context, *gorm.DB, bus.Message[txtest.Paid]) error) {
			gormtx.On(c, db, fn)
		},
		OnBatch: func(c *bus.Consumer, fn func(context.Context, *gorm.DB, []bus.Message[txtest.Paid]) error) {
			gormtx.OnBatch(c, db, fn)
		},
		NotOpen: map[string]*gorm.DB{
			"nil": nil, "the zero value": {}, "no transaction": db, "a session outside of one": db.Session(&gorm.Session{PrepareStmt: true}),
		},
	}
}

// ways are gorm's ways to send a statement.
var ways = map[string]func(ctx context.Context, tx *gorm.DB, query string, args ...any) error{
	"Exec": func(ctx context.Context, tx *gorm.DB, query string, args ...any) error {
		return tx.WithContext(ctx).Exec(query, args...).Error
	},
	"Scan": func(ctx context.Context, tx *gorm.DB, query string, args ...any) error {
		var all []int
		return tx.WithContext(ctx).Raw(query, args...).Scan(&all).Error
	},
	"Row": func(ctx context.Context, tx *gorm.DB, query string, args ...any) error {
		var n any
		return tx.WithContext(ctx).Raw(query, args...).Row().Scan(&n)
	},
	"Rows": func(ctx context.Context, tx *gorm.DB, query string, args ...any) error {
		rows, err := tx.WithContext(ctx).Raw(query, args...).Rows()
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
		}
		return rows.Err()
	},
}

// Account is a model with an association.
type Account struct {
	ID       int
	Points   int
	Bookings []Booking
}

// Booking has a hook.
type Booking struct {
	ID, AccountID, Points int
}

// AfterCreate is run by gorm within the same transaction.
func (b *Booking) AfterCreate(tx *gorm.DB) error {
	return tx.Model(&Account{}).Where("id = ?", b.AccountID).Update("points", gorm.Expr("points + ?", b.Points)).Error
}

// Models, associations and hooks of gorm run in the delivery's transaction, and gorm's own transaction around a write does not
// commit it.
func TestModelsAreWrittenInTheDelivery(t *testing.T) {
	t.Parallel()
	for _, database := range testdb.Dialects() {
		for _, cfg := range []gorm.Config{{}, {PrepareStmt: true}, {SkipDefaultTransaction: true}, {DisableNestedTransaction: true}} {
			t.Run(fmt.Sprintf("%s/PrepareStmt %v, SkipDefaultTransaction %v, DisableNestedTransaction %v", database, cfg.PrepareStmt,
				cfg.SkipDefaultTransaction, cfg.DisableNestedTransaction), func(t *testing.T) {
				t.Parallel()
				bdb := testdb.Open(t, database)
				db := openGorm(t, testdb.Dialect(database), bdb.DB, cfg)
				require.NoError(t, db.AutoMigrate(&Account{}, &Booking{}))
				require.NoError(t, db.Create(&Account{ID: 1}).Error)
				ob, err := outbox.New(bdb, outbox.Config{Logger: slog.New(slog.DiscardHandler)})
				require.NoError(t, err)
				b := bus.New(bdb, bus.Config{Logger: slog.New(slog.DiscardHandler)})
				gormtx.On(b.Consumer("Points", bus.ConsumerConfig{MaxAttempts: 1}),
					// what was said of db before does not count
					db.Where("points < 0").Model(&Booking{}), book)
				save := func(seq int) {
					require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
						return gormtx.Save(t.Context(), ob, tx, txtest.Paid{Order: fmt.Sprint(seq), Seq: seq})
					}))
				}
				save(42)
				save(-1)
				save(8)
				p, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
				require.NoError(t, err)
				_, err = p.RunOnce(t.Context())
				require.NoError(t, err)
				var account Account
				require.NoError(t, db.Preload("Bookings").First(&account, 1).Error)
				require.Equal(t, 50, account.Points)
				require.Len(t, account.Bookings, 2, "those of the failed delivery are gone")
			})
		}
	}
}

func book(_ context.Context, tx *gorm.DB, m bus.Message[txtest.Paid]) error {
	var account Account
	if err := tx.First(&account, 1).Error; err != nil {
		return err
	}
	if err := tx.Model(&account).Association("Bookings").Append(&Booking{Points: m.Payload.Seq}); err != nil {
		return err
	}
	if m.Payload.Seq < 0 {
		return errors.New("nobody loses points")
	}
	return nil
}

// A session that keeps prepared statements would run them outside of the delivery's transaction, or keep its own for others.
func TestPrepareStmtInAHandlerEscapesNothing(t *testing.T) {
	t.Parallel()
	for _, database := range testdb.Dialects() {
		t.Run(database, func(t *testing.T) {
			t.Parallel()
			bdb := testdb.Open(t, database)
			db := openGorm(t, testdb.Dialect(database), bdb.DB, gorm.Config{PrepareStmt: true})
			require.NoError(t, db.AutoMigrate(&Account{}))
			require.NoError(t, db.Create(&Account{ID: 1}).Error)
			add := func(tx *gorm.DB) error {
				return tx.Exec("UPDATE accounts SET points = points + 1 WHERE id = ?", 1).Error
			}
			ob, err := outbox.New(bdb, outbox.Config{Logger: slog.New(slog.DiscardHandler)})
			require.NoError(t, err)
			b := bus.New(bdb, bus.Config{Logger: slog.New(slog.DiscardHandler)})
			var said []error
			gormtx.On(b.Consumer("Points", bus.ConsumerConfig{MaxAttempts: 1, Concurrency: 1}),
				db, func(_ context.Context, tx *gorm.DB, _ bus.Message[txtest.Paid]) error {
					said = append(said, add(tx.Session(&gorm.Session{PrepareStmt: true})))
					return nil
				})
			p, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
			require.NoError(t, err)
			for _, known := range []bool{false, true} { // the statement is in gorm's cache, of a transaction of gorm's own
				if known {
					require.NoError(t, db.Transaction(add))
				}
				require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
					return gormtx.Save(t.Context(), ob, tx, txtest.Paid{Order: fmt.Sprint(known)})
				}))
				_, err = p.RunOnce(t.Context())
				require.NoError(t, err)
			}
			require.Len(t, said, 2)
			require.ErrorContains(t, said[0], "leave PrepareStmt out of the session")
			require.Error(t, said[1])
			require.NoError(t, db.Transaction(add), "gorm's own cache is as it was")
			var points int
			require.NoError(t, db.Raw("SELECT points FROM accounts").Scan(&points).Error)
			require.Equal(t, 2, points, "nothing of the handlers")
		})
	}
}

// A gorm of another dialect is refused by name, before anything is sent.
func TestAnotherDialectIsRefused(t *testing.T) {
	t.Parallel()
	for _, database := range testdb.Dialects() {
		t.Run(database, func(t *testing.T) {
			t.Parallel()
			bdb, elsewhere := testdb.Open(t, database), "sqlite"
			if database == elsewhere {
				elsewhere = "mysql"
			}
			is := testdb.Dialect(database)
			other := openGorm(t, "sqlite", testdb.Open(t, "sqlite", testdb.Bare).DB, gorm.Config{})
			if elsewhere == "mysql" {
				other.Dialector = mysql.New(mysql.Config{})
			}
			ob, err := outbox.New(bdb, outbox.Config{Logger: slog.New(slog.DiscardHandler)})
			require.NoError(t, err)
			err = other.Transaction(func(tx *gorm.DB) error { return gormtx.Save(t.Context(), ob, tx, txtest.Paid{Order: "1"}) })
			require.ErrorContains(t, err,
				"gormtx.Save: the *gorm.DB is for another database (its dialect is "+elsewhere+"; the outbox is in "+is+")")

			b := bus.New(bdb, bus.Config{Logger: slog.New(slog.DiscardHandler)})
			gormtx.On(b.Consumer("A", bus.ConsumerConfig{}), other, book)
			gormtx.OnBatch(b.Consumer("B", bus.ConsumerConfig{}), other,
				func(context.Context, *gorm.DB, []bus.Message[txtest.Paid]) error { return nil })
			gormtx.On(b.Consumer("C", bus.ConsumerConfig{}), nil, book)
			_, err = outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
			require.ErrorContains(t, err, `gormtx.On of consumer "A": the *gorm.DB is for another database (its dialect is `+elsewhere+
				"; the bus works in "+is+")")
			require.ErrorContains(t, err, `gormtx.OnBatch of consumer "B": the *gorm.DB is for another database`)
			require.ErrorContains(t, err, `gormtx.On of consumer "C": db is nil`)
		})
	}
}

// A transaction that could not begin says why.
func TestSaveSaysWhatIsWrongWithTheTransaction(t *testing.T) {
	t.Parallel()
	_, db, ob := openSQLite(t)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	err := gormtx.Save(t.Context(), ob, db.WithContext(over).Begin(), txtest.Paid{Order: "1"})
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "gormtx.Save: the *gorm.DB has an error already")
}

// What writes nothing saves no event either, and a handler that would write nothing is refused.
func TestDryRunSavesNothing(t *testing.T) {
	t.Parallel()
	bdb, db, ob := openSQLite(t)
	dry := db.Session(&gorm.Session{DryRun: true})
	require.NoError(t, gormtx.Save(t.Context(), ob, dry, txtest.Paid{Order: "1"}))
	require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
		tx.ToSQL(func(tx *gorm.DB) *gorm.DB {
			require.NoError(t, gormtx.Save(t.Context(), ob, tx, txtest.Paid{Order: "1"}))
			return tx
		})
		return nil
	}))
	var events int64
	require.NoError(t, db.Table("bc_outbox_event").Count(&events).Error)
	require.Zero(t, events)

	b := bus.New(bdb, bus.Config{Logger: slog.New(slog.DiscardHandler)})
	gormtx.On(b.Consumer("A", bus.ConsumerConfig{}), dry, book)
	_, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	require.ErrorContains(t, err, `gormtx.On of consumer "A": the *gorm.DB is in DryRun`)
}

// Mistakes are named before anything is sent.
func TestMistakesAreNamed(t *testing.T) {
	t.Parallel()
	bdb, db, ob := openSQLite(t)
	require.NoError(t, db.Transaction(func(tx *gorm.DB) error {
		require.EqualError(t, gormtx.Save(t.Context(), nil, tx, txtest.Paid{Order: "1"}),
			"gormtx.Save: the *outbox.Outbox is nil: make one by outbox.New, and give it to what saves")
		return nil
	}))
	b := bus.New(bdb, bus.Config{Logger: slog.New(slog.DiscardHandler)})
	var begun, saved error
	gormtx.On(b.Consumer("A", bus.ConsumerConfig{}), db, func(ctx context.Context, tx *gorm.DB, _ bus.Message[txtest.Paid]) error {
		begun, saved = tx.Begin().Error, gormtx.Save(ctx, ob, db, txtest.Paid{Order: "2"})
		return nil
	})
	require.NoError(t, db.Transaction(func(tx *gorm.DB) error { return gormtx.Save(t.Context(), ob, tx, txtest.Paid{Order: "1"}) }))
	pub, err := outbox.NewPublisher(ob, b, outbox.PublisherConfig{})
	require.NoError(t, err)
	_, err = pub.RunOnce(t.Context())
	require.NoError(t, err)
	require.ErrorContains(t, begun, "use tx.Transaction for a part that may fail")
	require.ErrorContains(t, saved, "in a handler with the handler's tx")
}
