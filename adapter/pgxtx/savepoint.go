package pgxtx

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// savepoint is a transaction inside of that of a delivery.
type savepoint struct {
	*deliveryTx

	name   string
	isOver bool
}

// Commit keeps what was written since the savepoint.
func (s *savepoint) Commit(ctx context.Context) error { return s.end(ctx, "RELEASE SAVEPOINT ") }

// Rollback undoes what was written since the savepoint.
func (s *savepoint) Rollback(ctx context.Context) error { return s.end(ctx, "ROLLBACK TO SAVEPOINT ") }

func (s *savepoint) end(ctx context.Context, statement string) error {
	if s.isOver {
		return ended(pgx.ErrTxClosed)
	}
	s.isOver = true
	_, err := s.deliveryTx.Exec(ctx, statement+s.name)
	return err
}

// Begin makes a savepoint inside of this one.
func (s *savepoint) Begin(ctx context.Context) (pgx.Tx, error) {
	if s.isOver {
		return nil, ended(pgx.ErrTxClosed)
	}
	return s.deliveryTx.Begin(ctx)
}

// Exec runs a statement.
func (s *savepoint) Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	if s.isOver {
		return pgconn.CommandTag{}, ended(pgx.ErrTxClosed)
	}
	return s.deliveryTx.Exec(ctx, query, args...)
}

// Query runs a statement that answers rows.
func (s *savepoint) Query(ctx context.Context, query string, args ...any) (pgx.Rows, error) {
	if s.isOver {
		err := ended(pgx.ErrTxClosed)
		return failedRows{err}, err
	}
	return s.deliveryTx.Query(ctx, query, args...)
}

// QueryRow runs a statement that answers a row.
func (s *savepoint) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	r, _ := s.Query(ctx, query, args...) // the row has the error
	return row{r}
}

// CopyFrom writes rows by COPY.
func (s *savepoint) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (int64, error) {
	if s.isOver {
		return 0, ended(pgx.ErrTxClosed)
	}
	return s.deliveryTx.CopyFrom(ctx, table, columns, src)
}

// Prepare prepares a statement under a name, for this connection.
func (s *savepoint) Prepare(ctx context.Context, name, query string) (*pgconn.StatementDescription, error) {
	if s.isOver {
		return nil, ended(pgx.ErrTxClosed)
	}
	return s.deliveryTx.Prepare(ctx, name, query)
}

// SendBatch sends several statements at once.
func (s *savepoint) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	if s.isOver {
		return pgx.FailedBatchResults(b, ended(pgx.ErrTxClosed))
	}
	return s.deliveryTx.SendBatch(ctx, b)
}
