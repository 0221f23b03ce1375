package pgxtx_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/adapter/pgxtx"
	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/bustest"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/outbox"
)

// keyed is saved once for each key.
type keyed struct{ orderPaid }

func (keyed) EventType() string        { return "order.keyed" }
func (k keyed) IdempotencyKey() string { return "paid:" + k.OrderID }

// An event is there if its transaction committed, in every way in which pgx is told about values, by a connection and by a pool.
func TestSaveIsPartOfTheTransaction(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			dsn := testdb.DSN(t, "postgres")
			h := bustest.New(t, testdb.OpenDSN(t, dsn))
			pool, err := pgxpool.New(t.Context(), dsn+"&default_query_exec_mode="+mode)
			require.NoError(t, err)
			t.Cleanup(pool.Close)
			conn, err := pgx.Connect(t.Context(), dsn+"&default_query_exec_mode="+mode)
			require.NoError(t, err)
			t.Cleanup(func() { _ = conn.Close(context.Background()) })
			undo := errors.New("undo it")
			save := func(tx pgx.Tx, id string) error {
				events := []bus.Event{
					outbox.With(orderPaid{OrderID: id}, outbox.Tenant(12, 3)), keyed{orderPaid{OrderID: id}}, keyed{orderPaid{OrderID: id}},
				}
				return pgxtx.Save(t.Context(), h.Outbox, tx, events...)
			}
			for name, db := range map[string]interface {
				Begin(ctx context.Context) (pgx.Tx, error)
			}{"conn": conn, "pool": pool} {
				require.ErrorIs(t, pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
					return errors.Join(save(tx, name+" undone"), undo)
				}), undo)
				require.NoError(t, pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
					require.ErrorIs(t, pgx.BeginFunc(t.Context(), tx, func(tx pgx.Tx) error {
						return errors.Join(save(tx, name+" undone inside"), undo)
					}), undo)
					return pgx.BeginFunc(t.Context(), tx, func(tx pgx.Tx) error { return save(tx, name) })
				}))
				require.NoError(t, pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error { return save(tx, name) }), "the key is known")
			}
			var ids []string
			for _, s := range bustest.AllSaved[orderPaid](h) {
				require.EqualValues(t, 12, s.TenantID)
				ids = append(ids, s.Payload.OrderID)
			}
			require.ElementsMatch(t, []string{"conn", "conn", "pool", "pool"}, ids)
			require.Len(t, bustest.AllSaved[keyed](h), 2, "one of each key")
		})
	}
}

// What cannot be saved in is refused, with what to do.
func TestSaveRefusesWhatIsNoOpenTransaction(t *testing.T) {
	t.Parallel()
	dsn := testdb.DSN(t, "postgres")
	h := bustest.New(t, testdb.OpenDSN(t, dsn))
	pool, err := pgxpool.New(t.Context(), dsn)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	save := func(tx pgx.Tx) error { return pgxtx.Save(t.Context(), h.Outbox, tx, orderPaid{OrderID: "1"}) }
	for name, end := range map[string]func(tx pgx.Tx) error{
		"Commit":   func(tx pgx.Tx) error { return tx.Commit(t.Context()) },
		"Rollback": func(tx pgx.Tx) error { return tx.Rollback(t.Context()) },
	} {
		tx, err := pool.Begin(t.Context())
		require.NoError(t, err)
		nested, err := tx.Begin(t.Context())
		require.NoError(t, err)
		require.NoError(t, end(nested), name)
		require.ErrorIs(t, save(nested), pgx.ErrTxClosed, name)
		require.NoError(t, end(tx), name)
		err = save(tx)
		require.ErrorContains(t, err, "the transaction has ended: save before its Commit or Rollback", name)
		require.ErrorIs(t, err, pgx.ErrTxClosed, name)
		require.ErrorIs(t, err, sql.ErrTxDone, name)
	}
	require.ErrorContains(t, save(nil), "needs an open transaction, got nil")
	require.ErrorContains(t, save((*pgxpool.Tx)(nil)), "needs an open transaction, got nil")
	require.NoError(t, pgxtx.Save(t.Context(), h.Outbox, nil), "nothing to save")

	tx, err := pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = tx.Exec(t.Context(), "SELECT nonsense")
	require.Error(t, err)
	require.ErrorContains(t, save(tx), "current transaction is aborted")
	require.NoError(t, tx.Rollback(t.Context()))

	tx, err = pool.Begin(t.Context())
	require.NoError(t, err)
	require.ErrorIs(t, pgxtx.Save(t.Context(), h.Outbox, tx, nil), outbox.ErrInvalidEvent)
	require.NoError(t, save(tx), "it is still usable")
	require.NoError(t, tx.Commit(t.Context()))
	require.Len(t, bustest.AllSaved[orderPaid](h), 1)

	_, err = pool.Exec(t.Context(), "ALTER TABLE bc_outbox_event RENAME TO elsewhere")
	require.NoError(t, err)
	tx, err = pool.Begin(t.Context())
	require.NoError(t, err)
	require.ErrorContains(t, save(tx), "run migrations.Up")
	require.NoError(t, tx.Rollback(t.Context()))
}
