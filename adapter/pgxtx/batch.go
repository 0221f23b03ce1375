package pgxtx

import (
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// batchResults are those of pgx. They use the connection alone, and how the batch ended is told to the watch.
type batchResults struct {
	pgx.BatchResults

	t      *deliveryTx
	done   func(error) error // told once
	isOver bool
	err    error // once it is over
}

// read calls fn with the connection to itself.
func (b *batchResults) read(fn func() error) (err error) {
	if b.isOver {
		return errors.New("pgxtx: the batch is closed")
	}
	return b.t.use(func() error {
		if lost := b.t.raw(func() { err = fn() }); lost != nil {
			return lost
		}
		return ended(err)
	})
}

// Exec reads the result of the next statement.
func (b *batchResults) Exec() (tag pgconn.CommandTag, err error) {
	err = b.read(func() (err error) {
		tag, err = b.BatchResults.Exec()
		return err
	})
	return tag, err
}

// Query reads the rows of the next statement.
func (b *batchResults) Query() (pgx.Rows, error) {
	r := &rows{t: b.t, done: ended} // Close tells the watch
	if err := b.read(func() (err error) {
		r.Rows, err = b.BatchResults.Query()
		return err
	}); err != nil {
		return failedRows{err}, err
	}
	return r, nil
}

// QueryRow reads the row of the next statement.
func (b *batchResults) QueryRow() pgx.Row {
	r, _ := b.Query() // the row has the error
	return row{r}
}

// Close reads what is left, and says what went wrong first.
func (b *batchResults) Close() error {
	if b.isOver {
		return b.err
	}
	return b.t.use(func() error {
		var answer error
		err := b.t.raw(func() { answer = b.BatchResults.Close() })
		if err == nil {
			err = answer
		}
		b.isOver = true
		b.err = b.done(err)
		return b.err
	})
}

func (b *batchResults) close() { _ = b.Close() } // the watch has been told
