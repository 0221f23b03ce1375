package health

import (
	"context"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
	"github.com/bluecone-go/bluecone/internal/text"
)

const (
	beatEvery   = 10 * time.Second
	beatTimeout = time.Second // the end of the process waits for it
	beatKept    = 24 * time.Hour
)

// Heartbeat says in bc_instance, every few seconds, that a publisher runs, until it stops. A publisher
// that ends in order removes its row; a row that remains tells of a crash, for a day.
type Heartbeat struct {
	DB     *bun.DB
	Rows   store.Instances
	Logger *slog.Logger
	Name   string // of the publisher
	Owner  string // of its leases
}

// Signs are what a heartbeat tells of a publisher.
type Signs struct {
	InFlight int      // events that it has claimed and not yet settled
	Broken   []string // keys of the consumers that are left alone for a while because what they call is away
}

// Run tells what read returns until stop is closed. The publisher drains when ctx has ended.
func (h Heartbeat) Run(ctx context.Context, stop <-chan struct{}, read func() Signs) {
	h.beat(func(ctx context.Context) error { return h.Rows.Forget(ctx, h.DB, beatKept) })
	is := store.Instance{Name: h.Name, Run: h.Owner}
	is.Host, is.Version = describeProcess()
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for ending := ctx.Done(); ; {
		signs := read()
		is.InFlight, is.Circuits, is.Clock = signs.InFlight, strings.Join(signs.Broken, ","), time.Now().UnixMicro()
		h.beat(func(ctx context.Context) error { return h.Rows.Announce(ctx, h.DB, is) })
		select {
		case <-tick.C:
		case <-ending:
			ending, is.IsDraining = nil, true
		case <-stop:
			h.beat(func(ctx context.Context) error { return h.Rows.Remove(ctx, h.DB, is.Name, is.Run) })
			return
		}
	}
}

// beat writes once and only logs an error: nothing but the console and the doctor reads the row.
func (h Heartbeat) beat(write func(ctx context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), beatTimeout)
	defer cancel()
	if err := write(ctx); err != nil {
		h.Logger.DebugContext(ctx, "the instance could not be announced; it is tried again in a moment", telemetry.Err, err)
	}
}

// describeProcess names the machine and the build.
func describeProcess() (host, version string) {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	version = "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		version = info.Main.Version
		for _, setting := range info.Settings {
			if setting.Key == "vcs.revision" && (version == "" || version == "(devel)") {
				version = setting.Value
			}
		}
	}
	return text.Clean(host, 255), text.Clean(version, 128)
}
