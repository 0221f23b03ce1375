package service

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/demo/bluecone/module/points"
	"github.com/bluecone-go/bluecone/demo/httpserver"
)

// mostBody is how many bytes a request may have.
const mostBody = 1 << 10

// accounts answers what the monolith asks.
type accounts struct {
	db     *bun.DB
	facade *points.Facade
}

func handler(db *bun.DB, facade *points.Facade, hosts []string) http.Handler {
	a := accounts{db, facade}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /users/{id}/points", a.get)
	mux.HandleFunc("PUT /users/{id}/points", a.open)
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := db.PingContext(r.Context()); err != nil {
			httpserver.Unavailable(w, r, err)
			return
		}
		httpserver.Answer(w, http.StatusOK, map[string]string{"status": "ready"})
	})
	return httpserver.KnownHost(hosts, httpserver.Errors(mux))
}

func (a accounts) get(w http.ResponseWriter, r *http.Request) {
	b, err := a.facade.Get(r.Context(), a.db, r.PathValue("id"))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		httpserver.Fail(w, http.StatusNotFound, "no such account", "NOT_FOUND")
	case err != nil:
		httpserver.Unavailable(w, r, err)
	default:
		httpserver.Answer(w, http.StatusOK, b)
	}
}

// open opens an account, unless it is there. Two requests at once for one account may make one of them fail: it is repeated.
func (a accounts) open(w http.ResponseWriter, r *http.Request) {
	var o points.Opening
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, mostBody)).Decode(&o); err != nil || o.Points < 0 {
		httpserver.Fail(w, http.StatusBadRequest, `send {"points": n}, which must not be negative`, "INVALID")
		return
	}
	id := r.PathValue("id")
	err := a.db.RunInTx(r.Context(), nil, func(ctx context.Context, tx bun.Tx) error {
		if _, err := a.facade.Get(ctx, tx, id); !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		return a.facade.Open(ctx, tx, id, o.Points)
	})
	if err != nil {
		httpserver.Unavailable(w, r, err)
		return
	}
	httpserver.Answer(w, http.StatusOK, o)
}
