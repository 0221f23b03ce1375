package enttx_test

import (
	"context"
	"testing"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"

	"github.com/bluecone-go/bluecone/adapter/enttx"
	"github.com/bluecone-go/bluecone/adapter/enttx/testdata/ent"
	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/internal/txtest"
	"github.com/bluecone-go/bluecone/outbox"
)

func TestMain(m *testing.M) { testdb.Main(m) }

func TestSuite(t *testing.T) { //nolint:paralleltest // its tests are
	txtest.Run(t, txtest.Adapter[*ent.Tx]{Open: open})
}

// dialects are ent's names of them.
var dialects = map[string]string{"mysql": dialect.MySQL, "postgres": dialect.Postgres, "sqlite": dialect.SQLite}

func open(w *txtest.World) txtest.Door[*ent.Tx] {
	client := ent.NewClient(ent.Driver(entsql.OpenDB(dialects[w.Dialect()], w.DB.DB)))
	return txtest.Door[*ent.Tx]{
		Begin:    client.Tx,
		Commit:   func(_ context.Context, tx *ent.Tx) error { return tx.Commit() },
		Rollback: func(_ context.Context, tx *ent.Tx) error { return tx.Rollback() },
		Save: func(ctx context.Context, ob *outbox.Outbox, tx *ent.Tx, events ...bus.Event) error {
			return ob.Save(ctx, tx, events...)
		},
		Ways: map[string]func(ctx context.Context, tx *ent.Tx, query string, args ...any) error{
			"Exec": func(ctx context.Context, tx *ent.Tx, query string, args ...any) error {
				_, err := tx.ExecContext(ctx, w.Native(query), args...)
				return err
			},
			"Query": func(ctx context.Context, tx *ent.Tx, query string, args ...any) error {
				rows, err := tx.QueryContext(ctx, w.Native(query), args...)
				if err != nil {
					return err
				}
				defer rows.Close()
				for rows.Next() {
				}
				return rows.Err()
			},
			"Client": func(ctx context.Context, tx *ent.Tx, query string, args ...any) error {
				_, err := tx.Client().ExecContext(ctx, w.Native(query), args...)
				return err
			},
		},
		Number: func(ctx context.Context, tx *ent.Tx, query string, args ...any) (int, error) {
			rows, err := tx.QueryContext(ctx, w.Native(query), args...)
			if err != nil {
				return 0, err
			}
			defer rows.Close()
			n, err := entsql.ScanInt(rows)
			if err != nil {
				return 0, err
			}
			return n, rows.Err()
		},
		On: func(c *bus.Consumer, fn func(context.Context, *ent.Tx, bus.Message[txtest.Paid]) error) {
			enttx.On(c, openClient, fn)
		},
		OnBatch: func(c *bus.Consumer, fn func(context.Context, *ent.Tx, []bus.Message[txtest.Paid]) error) {
			enttx.OnBatch(c, openClient, fn)
		},
		NotOpen: map[string]*ent.Tx{"nil": nil, "the zero value": {}},
	}
}
