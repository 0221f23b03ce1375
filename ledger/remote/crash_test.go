package remote_test

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ledger/remote"
)

// What tells a child process where to die.
const (
	childPoint  = "BLUECONE_REMOTE_POINT"
	childDSN    = "BLUECONE_REMOTE_DSN"
	childLedger = "BLUECONE_REMOTE_LEDGER"
)

// points are those at which a consumer may die: in a handler that has had its effect, when it has committed and the ledger has
// not heard of it, and when the ledger has.
var points = []string{"handled", "committed", "acknowledged"}

// However a consumer dies, each event has one effect, in the order of its aggregate.
func TestConsumerKilledBetweenItsSteps(t *testing.T) {
	t.Parallel()
	testdb.Each(t, func(t *testing.T, db *bun.DB) {
		w := newWorld(t, db, time.Second)
		var all []string
		for _, order := range []string{"A", "B", "C"} {
			all = append(all, w.publish(order, 4)...)
		}
		for _, point := range points {
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), childPoint+"="+point, childDSN+"="+w.dsn, childLedger+"="+w.url)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			require.ErrorContains(t, cmd.Run(), "killed", "%s: %s", point, stderr.String())
		}
		w.consume(nothing, remote.Config{})
		w.done(len(all))
		slices.Sort(all)
		require.Equal(t, all, w.effects(), "each once")
	})
}

func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// deadly kills the process before or after a call.
type deadly struct{ point string }

func (d deadly) RoundTrip(r *http.Request) (*http.Response, error) {
	isAck := strings.HasSuffix(r.URL.Path, "/Ack")
	if isAck && d.point == "committed" {
		die()
	}
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err == nil && isAck && d.point == "acknowledged" {
		die()
	}
	return resp, err
}

// live is the life of a consumer that ends at a point.
func live(ctx context.Context) error {
	point := os.Getenv(childPoint)
	db, err := testdb.Connect(os.Getenv(childDSN))
	if err != nil {
		return err
	}
	c, err := clientOf(os.Getenv(childLedger), &http.Client{Transport: deadly{point}})
	if err != nil {
		return err
	}
	b := bus.New(db, bus.Config{})
	register(b, func(context.Context, bus.Message[paid]) error {
		if point == "handled" {
			die()
		}
		return nil
	})
	r, err := remote.Consumer(b, c, remote.Config{Wait: time.Second})
	if err != nil {
		return err
	}
	return r.Run(ctx)
}
