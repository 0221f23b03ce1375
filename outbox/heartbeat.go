package outbox

import (
	"context"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
	"github.com/bluecone-go/bluecone/internal/text"
)

const (
	beatEvery   = 10 * time.Second
	beatTimeout = time.Second // nobody waits longer for it, least of all the end of the process
	beatKept    = 24 * time.Hour
)

// heartbeat says in bc_instance, every few seconds, that this publisher runs, until it stops. A row
// whose publisher has ended as it should is gone; one that remains tells of a crash, for a day.
func (s *session) heartbeat(ctx context.Context) {
	o := s.p.ob
	s.beat(func(ctx context.Context) error { return o.instances.Forget(ctx, o.db, beatKept) })
	is := store.Instance{Name: s.p.name, Run: s.p.owner}
	is.Host, is.Version = s.describeProcess()
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for ending := ctx.Done(); ; {
		is.InFlight, is.Circuits, is.Clock = len(s.flights.all()), strings.Join(s.lanes.Broken(), ","), time.Now().UnixMicro()
		s.beat(func(ctx context.Context) error { return o.instances.Announce(ctx, o.db, is) })
		select {
		case <-tick.C:
		case <-ending:
			ending, is.IsDraining = nil, true
		case <-s.stop:
			s.beat(func(ctx context.Context) error { return o.instances.Remove(ctx, o.db, is.Name, is.Run) })
			return
		}
	}
}

// beat writes, or does not: it is for the eyes of people only.
func (s *session) beat(write func(ctx context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), beatTimeout)
	defer cancel()
	if err := write(ctx); err != nil {
		s.p.ob.logger.DebugContext(ctx, "the instance could not be announced; the next beat tries again", telemetry.Err, err)
	}
}

// describeProcess names the machine and the build.
func (s *session) describeProcess() (host, version string) {
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
