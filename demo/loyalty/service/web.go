package service

import (
	"context"
	"net/http"

	"github.com/bluecone-go/bluecone/consumelog"
	"github.com/bluecone-go/bluecone/demo/httpserver"
	"github.com/bluecone-go/bluecone/ops"
	"github.com/bluecone-go/bluecone/outbox"
)

// stats are the counts of the database, the same from every instance.
type stats struct {
	Landed     int   `json:"landed"`     // events that came by the broker, those too that retention has removed
	Duplicates int   `json:"duplicates"` // messages that came again
	Open       int64 `json:"open"`       // deliveries that have not come to their end
	Dead       int64 `json:"dead"`       // deliveries that wait for an operator
}

// stats reads the counts. The events have one consumer: a delivery of which there is no row yet is an event that is open.
func (a *app) stats(ctx context.Context) (s stats, err error) {
	landed, err := a.inbox.Counts(ctx)
	if err != nil {
		return s, err
	}
	events, err := a.outbox.Counts(ctx)
	if err != nil {
		return s, err
	}
	deliveries, err := a.outbox.Log().Counts(ctx)
	s.Landed, s.Duplicates, s.Dead = landed.Landed, landed.Duplicates, deliveries[consumelog.Dead]
	for status, n := range events {
		if status != outbox.StatusSent && status != outbox.StatusDead {
			s.Open += n
		}
	}
	return s, err
}

// handler is the API.
func (a *app) handler(o *ops.Ops, hosts []string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /users/{id}/stamps", func(w http.ResponseWriter, r *http.Request) {
		n, err := a.stamps.of(r.Context(), r.PathValue("id"))
		reply(w, r, map[string]int64{"stamps": n}, err)
	})
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, r *http.Request) {
		s, err := a.stats(r.Context())
		reply(w, r, s, err)
	})
	health := ops.Health(o)
	mux.Handle("GET /livez", health)
	mux.Handle("GET /readyz", health)
	return httpserver.KnownHost(hosts, httpserver.Errors(mux))
}

func reply(w http.ResponseWriter, r *http.Request, v any, err error) {
	if err != nil {
		httpserver.Unavailable(w, r, err)
		return
	}
	httpserver.Answer(w, http.StatusOK, v)
}
