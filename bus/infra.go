package bus

import (
	"errors"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// infraError is a failure of the database, not of the handler: it is not an attempt.
type infraError struct{ err error }

func (e *infraError) Error() string { return e.err.Error() }
func (e *infraError) Unwrap() error { return e.err }

func asInfra(f *fence, err error) error {
	if err == nil || isInfra(err) {
		return err
	}
	if f.poisoned() != nil || dialect.Classify(err) == dialect.TxRetry {
		return &infraError{err}
	}
	return err
}

func isInfra(err error) bool {
	var infra *infraError
	return errors.As(err, &infra)
}

// isOutage reports whether the database is away or refuses writes, which no number of attempts would mend.
func isOutage(err error) bool {
	class := dialect.Classify(err)
	return isInfra(err) && (class == dialect.Conn || class == dialect.Unavailable)
}
