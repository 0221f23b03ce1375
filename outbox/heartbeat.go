package outbox

import (
	"context"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/bluecone-go/bluecone/internal/dialect"
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
	s.beat("DELETE FROM bc_instance WHERE seen_at < "+s.p.ob.d.After, -dialect.Micro(beatKept))
	host, version := s.describeProcess()
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	for ending, draining := ctx.Done(), 0; ; {
		o := s.p.ob
		s.beat("INSERT INTO bc_instance (name, run_id, host, version, in_flight, clock_offset_us, draining, circuits, seen_at) VALUES (?, ?, ?, ?, ?, ? - "+o.d.Micros(o.d.Now)+", ?, ?, "+o.d.Now+")"+
			o.d.Upsert("name", "run_id", "host", "version", "in_flight", "clock_offset_us", "draining", "circuits", "seen_at"),
			s.p.name, s.p.owner, host, version, len(s.inFlight()), time.Now().UnixMicro(), draining, orNullText(strings.Join(s.lanes.Broken(), ",")))
		select {
		case <-tick.C:
		case <-ending:
			ending, draining = nil, 1
		case <-s.stop:
			s.beat("DELETE FROM bc_instance WHERE name = ? AND run_id = ?", s.p.name, s.p.owner)
			return
		}
	}
}

// beat writes, or does not: it is for the eyes of people only.
func (s *session) beat(query string, args ...any) {
	ctx, cancel := context.WithTimeout(context.Background(), beatTimeout)
	defer cancel()
	if _, err := s.p.ob.db.ExecContext(ctx, query, args...); err != nil {
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
