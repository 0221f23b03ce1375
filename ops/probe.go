package ops

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/bluecone-go/bluecone/internal/store"
	"github.com/bluecone-go/bluecone/internal/telemetry"
	"github.com/bluecone-go/bluecone/outbox"
)

// Health answers the probes of an orchestrator or a load balancer for this process, with GET and HEAD:
//
//   - /livez is 200 as long as the process answers. It asks nobody: a restart does not bring a database back.
//   - /readyz is 200 if the database answers within [Config.Timeout], its tables are those of this release, and a publisher
//     takes events in this process. A publisher is expected as soon as its Run has been called; one that drains, or has
//     ended by an error, is not ready. Otherwise the answer is 503.
//
// The answer is JSON and holds no text of the database, which goes to [Config.Logger] once each time the answer changes:
//
//	{"status":"ready","checks":[{"name":"database","ok":true,"says":"…"},{"name":"tables",…},{"name":"publisher",…}]}
//
// However many ask, one look at the database is under way at a time, in no reader's turn, and its answer is given to
// everybody for a second. An answer takes at most Config.Timeout: give your probes a little more. There is no login, so
// mount the handler where only those can reach it who may know whether the process is well:
//
//	mux.Handle("/livez", health)
//	mux.Handle("/readyz", health)
func Health(o *Ops) http.Handler {
	p := &prober{access: o.access, ob: o.ob, log: o.cfg.Logger}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, r *http.Request) {
		p.answer(w, r, http.StatusOK, healthReport{Status: "live"})
	})
	mux.HandleFunc("GET /readyz", p.ready)
	return mux
}

// healthReport is what a probe is told.
type healthReport struct {
	Status string        `json:"status"` // live, ready or not ready
	Checks []healthCheck `json:"checks,omitempty"`
}

type healthCheck struct {
	Name string `json:"name"`
	OK   bool   `json:"ok"`
	Says string `json:"says"`
}

// prober looks whether this process is ready.
type prober struct {
	access *access
	ob     *outbox.Outbox
	log    *slog.Logger

	mu      sync.Mutex
	look    *probe // the last one, which may be under way
	unready bool   // what was last logged
}

// probe is one look at the database.
type probe struct {
	began time.Time
	done  chan struct{} // closed when the rest is there
	ended time.Time
	err   error
}

func (p *prober) ready(w http.ResponseWriter, r *http.Request) {
	err := p.askDatabase(r.Context())
	if r.Context().Err() != nil {
		return // nobody waits for the answer any more
	}
	checks := append(databaseChecks(err), p.publisher())
	report, code := healthReport{Status: "ready", Checks: checks}, http.StatusOK
	for _, c := range checks {
		if !c.OK {
			report.Status, code = "not ready", http.StatusServiceUnavailable
		}
	}
	p.note(r.Context(), report, err)
	p.answer(w, r, code, report)
}

var errSlow = errors.New("the database did not answer in time")

// askDatabase answers what the last look has found, if that is fresh, or waits for the one under way.
func (p *prober) askDatabase(ctx context.Context) error {
	look := p.current(ctx)
	timer := time.NewTimer(time.Until(look.began.Add(p.access.timeout)))
	defer timer.Stop()
	select {
	case <-look.done:
		return look.err
	case <-timer.C: // the look is about to end, unless the driver does not heed its context: then nobody begins another one
		return errSlow
	case <-ctx.Done():
		return ctx.Err()
	}
}

// current is the look under way, or the last one, or else a new one.
func (p *prober) current(ctx context.Context) *probe {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.look; l != nil {
		select {
		case <-l.done:
			if time.Since(l.ended) < shareFor {
				return l
			}
		default:
			return l
		}
	}
	l := &probe{began: time.Now(), done: make(chan struct{})}
	p.look = l
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.access.timeout) // others may wait for it too
	go func() {
		defer cancel()
		l.err = store.CheckTables(ctx, p.access.db, p.access.sql.D)
		l.ended = time.Now()
		close(l.done)
	}()
	return l
}

// databaseChecks says what came of a look, in words of this library only.
func databaseChecks(err error) []healthCheck {
	database := healthCheck{"database", true, "It answers."}
	tables := healthCheck{"tables", true, "They are those of this release."}
	var misfit *store.TablesError
	switch {
	case err == nil:
	case errors.As(err, &misfit):
		tables.OK, tables.Says = false, misfit.Table+" is not as this release needs it: run migrations.Up of this release."
	default:
		database.OK, database.Says = false, "It does not answer as it should: the log says why."
		tables.OK, tables.Says = false, "Nobody knows while the database does not answer."
	}
	return []healthCheck{database, tables}
}

func (p *prober) publisher() healthCheck {
	switch running, expected := p.ob.Publishing(); {
	case running:
		return healthCheck{"publisher", true, "It takes events."}
	case expected:
		return healthCheck{"publisher", false, "It takes no events: it starts, drains or has ended."}
	}
	return healthCheck{"publisher", true, "None is expected in this process."}
}

// note logs a change.
func (p *prober) note(ctx context.Context, report healthReport, err error) {
	unready := report.Status != "ready"
	p.mu.Lock()
	changed := p.unready != unready
	p.unready = unready
	p.mu.Unlock()
	switch {
	case !changed:
	case unready:
		p.log.WarnContext(ctx, "this process is not ready", "checks", report.Checks, telemetry.Err, err)
	default:
		p.log.InfoContext(ctx, "this process is ready again")
	}
}

func (p *prober) answer(w http.ResponseWriter, r *http.Request, code int, report healthReport) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	if err := json.NewEncoder(w).Encode(report); err != nil {
		p.log.DebugContext(r.Context(), "a probe did not read its answer", telemetry.Err, err)
	}
}
