package delivery

import (
	"context"
	"errors"
	"time"

	"github.com/bluecone-go/bluecone/internal/dialect"
	"github.com/bluecone-go/bluecone/internal/handler"
)

// infraError is a failure of the database, not of the handler: it is not an attempt.
type infraError struct {
	err        error
	wasHandled bool // the handler had been called, and COMMIT had not
}

func (e *infraError) Error() string { return e.err.Error() }
func (e *infraError) Unwrap() error { return e.err }

func asInfra(f *handler.Fence, err error) error {
	if err == nil || isInfra(err) {
		return err
	}
	if p := f.Poisoned(); p != nil && !errors.Is(p, handler.ErrEnds) || dialect.Classify(err) == dialect.TxRetry {
		return &infraError{err: err}
	}
	return err
}

func isInfra(err error) bool {
	var infra *infraError
	return errors.As(err, &infra)
}

// isOutage reports whether the database is away or refuses writes, which no number of attempts would change.
func isOutage(err error) bool {
	return isInfra(err) && dialect.IsAway(err)
}

// lostByHandler reports whether the connection was lost while the handler was at work. It may be the handler's doing: a limit
// of its own that ends a statement, a result that it leaves open.
func lostByHandler(err error) bool {
	var infra *infraError
	return errors.As(err, &infra) && infra.wasHandled && dialect.Classify(err) == dialect.Conn
}

// reaches reports whether the database answers: then a connection that was lost again and again is no outage.
func (r *runner) reaches(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	return r.l.regs.DB.PingContext(ctx) == nil
}
