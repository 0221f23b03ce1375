package registry

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/telemetry"
)

// MalformedRows are rows of the registry that cannot be read: each is reported once. It is safe for concurrent use.
type MalformedRows struct {
	logger *slog.Logger
	said   sync.Map // by the keys of the consumers
}

// NewMalformedRows returns one that tells a logger.
func NewMalformedRows(logger *slog.Logger) *MalformedRows { return &MalformedRows{logger: logger} }

// Report reports, once for each consumer, that its row of the registry cannot be read.
func (r *MalformedRows) Report(ctx context.Context, key string, err error) {
	if _, said := r.said.LoadOrStore(key, true); !said {
		r.logger.WarnContext(ctx, "bc_consumer.event_types of a consumer is not a JSON list of texts, or longer than 64 KiB; the consumer is "+
			"known by bc_consumer_type only, nobody else is affected: write '[]' there, or retire the consumer", telemetry.Consumer, key,
			telemetry.Err, err)
	}
}

// Roster is what one run of a publisher last read of the registry: who takes what elsewhere, and which consumers are paused. The
// zero value knows nobody. It is safe for concurrent use.
type Roster struct {
	db        *bun.DB
	registry  *Registry
	malformed *MalformedRows

	mu     sync.Mutex
	last   *Snapshot
	at     time.Time // when it was read
	paused map[string]bool
	filled map[string]bool // a backfill of the consumer is open
}

// NewRoster returns a roster that nobody has read yet.
func NewRoster(db *bun.DB, registry *Registry, malformed *MalformedRows) *Roster {
	return &Roster{db: db, registry: registry, malformed: malformed, paused: make(map[string]bool), filled: make(map[string]bool)}
}

// Refresh reads the registry.
func (r *Roster) Refresh(ctx context.Context) error {
	all, _, err := r.registry.Read(ctx, r.db)
	if err == nil {
		r.Learn(ctx, all)
	}
	return err
}

// Learn takes over what the registry was just read to say.
func (r *Roster) Learn(ctx context.Context, all *Snapshot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.at = time.Now(); r.last == all {
		return
	}
	r.last = all
	for key, err := range all.Malformed {
		r.malformed.Report(ctx, key, err)
	}
	for _, c := range all.Consumers {
		r.paused[c.Key], r.filled[c.Key] = c.IsPaused, c.IsFilled
	}
}

// Last is what the registry last said, and how long ago.
func (r *Roster) Last() (all *Snapshot, age time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.last, time.Since(r.at)
}

// IsFilled reports whether a backfill of the consumer of this key is open.
func (r *Roster) IsFilled(key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.filled[key]
}

// IsPaused reports whether the consumer of this key must not start anything now.
func (r *Roster) IsPaused(key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.paused[key]
}
