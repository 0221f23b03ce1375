package pulled

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/handler"
)

var errNo = errors.New("no")

// What a publisher would make of an error is made of it here: what does not count there does not count here.
func TestAnswerToAnError(t *testing.T) {
	t.Parallel()
	refused := fmt.Errorf("call: %w", syscall.ECONNREFUSED)
	tooLong := &pgconn.PgError{Code: "22001"}
	ended, end := context.WithCancel(t.Context())
	end()
	for name, of := range map[string]struct {
		ctx  context.Context //nolint:containedctx // a table of tests
		err  error
		want Answer
	}{
		"any error":               {t.Context(), errNo, Answer{Outcome: Failed}},
		"permanent":               {t.Context(), handler.Permanent(refused), Answer{Outcome: Permanent}},
		"a value that never fits": {t.Context(), tooLong, Answer{Outcome: Permanent}},
		"later":                   {t.Context(), handler.RetryAfter(refused, time.Hour), Answer{Outcome: Later, After: time.Hour, IsAsked: true}},
		"later, all the same":     {t.Context(), handler.RetryAfter(tooLong, time.Hour), Answer{Outcome: Later, After: time.Hour, IsAsked: true}},
		"unavailable":             {t.Context(), handler.Unavailable(errNo), Answer{Outcome: Later, After: pauseUnavailable}},
		"not reached":             {t.Context(), refused, Answer{Outcome: Later, After: pauseUnavailable}},
		"not dialed":              {t.Context(), &net.OpError{Op: "dial", Err: errNo}, Answer{Outcome: Later, After: pauseUnavailable}},
		"not found by name":       {t.Context(), &net.DNSError{Err: "no such host"}, Answer{Outcome: Later, After: pauseUnavailable}},
		"a table is missing":      {t.Context(), &pgconn.PgError{Code: "42P01"}, Answer{Outcome: Later, After: pauseUnavailable}},
		"a deadlock":              {t.Context(), &troubleError{errNo}, Answer{Outcome: Later, After: pauseTrouble}},
		"the database is away":    {t.Context(), &troubleError{&pgconn.PgError{Code: "57P01"}}, Answer{Outcome: Later, After: pauseUnavailable}},
		"the process ends":        {ended, errNo, Answer{Outcome: Later, After: pauseTrouble}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			of.want.Error = of.err.Error()
			got := answerTo(of.ctx, of.err)
			got.Error = of.err.Error() // how it is cleaned is tested elsewhere
			require.Equal(t, of.want, got)
		})
	}
	require.Equal(t, Answer{Outcome: Skipped, Error: "old"}, answerTo(t.Context(), &handler.SkipError{Reason: "old"}))
}
