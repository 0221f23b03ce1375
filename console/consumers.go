package console

import (
	"cmp"
	"net/http"
	"slices"
	"strings"

	"github.com/bluecone-go/bluecone/ops"
)

// consumerList is a page of the consumers, in the order of their names.
type consumerList struct {
	Rows []ops.Consumer
	Fit  int    // how many the filter selects
	Next string // the name of the last one, if there are more
}

// consumers lists the consumers: a page of those whose name or display name contains a text, or all of them as JSON.
func (c reads) consumers(r *http.Request) (any, error) {
	all, err := c.ops.Consumers(r.Context())
	if err != nil || isAPI(r) {
		return all, err
	}
	q := r.URL.Query()
	part, after := strings.ToLower(strings.TrimSpace(q.Get("name"))), q.Get("cursor")
	fit := slices.DeleteFunc(slices.Clone(all), func(c ops.Consumer) bool {
		return !strings.Contains(strings.ToLower(c.Name), part) && !strings.Contains(strings.ToLower(c.DisplayName), part)
	})
	slices.SortFunc(fit, func(a, b ops.Consumer) int { return cmp.Compare(a.Name, b.Name) })
	v := consumerList{Fit: len(fit), Rows: slices.DeleteFunc(fit, func(c ops.Consumer) bool { return after != "" && c.Name <= after })}
	if len(v.Rows) > pageSize {
		v.Rows = v.Rows[:pageSize]
		v.Next = v.Rows[pageSize-1].Name
	}
	return v, nil
}

// overviewView is the overview with those consumers that it has room for.
type overviewView struct {
	ops.Overview
	Shown []ops.Consumer
}

func (c reads) overview(r *http.Request) (any, error) {
	v, err := c.ops.Overview(r.Context())
	if err != nil || isAPI(r) {
		return v, err
	}
	shown := slices.Clone(v.Consumers)
	if len(shown) > overviewConsumers { // those first that somebody has to look at
		slices.SortStableFunc(shown, func(a, b ops.Consumer) int { return cmp.Compare(trouble(b), trouble(a)) })
		shown = shown[:overviewConsumers]
	}
	return overviewView{v, shown}, nil
}

// trouble is higher the more urgently somebody has to look at a consumer.
func trouble(c ops.Consumer) int {
	switch {
	case c.Dead.Count > 0:
		return 4
	case c.Failed.Count > 0:
		return 3
	case c.State != ops.Running:
		return 2
	case c.Waiting.Count > 0:
		return 1
	}
	return 0
}
