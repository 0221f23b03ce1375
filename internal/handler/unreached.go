package handler

import (
	"errors"
	"io"
	"net"
	"syscall"

	"github.com/bluecone-go/bluecone/internal/dialect"
)

// IsUnreached reports whether a handler's error says that the next event may end in the same way: the handler says that the
// service is away, or the other side was not reached, or went away, or a table is not as the code takes it to be. Such an
// attempt does not count: no event becomes DEAD at once because a service was away or a migration was late.
func IsUnreached(err error) bool {
	if later := (*RetryAfterError)(nil); errors.As(err, &later) {
		return false // the handler knows better
	}
	if away := (*UnavailableError)(nil); errors.As(err, &away) {
		return true
	}
	if dialect.Classify(err) == dialect.Schema {
		return true
	}
	var dns *net.DNSError
	var op *net.OpError
	if errors.As(err, &dns) || errors.As(err, &op) {
		return true
	}
	for _, e := range []error{
		syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EPIPE,
		io.ErrUnexpectedEOF,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
