package console

import (
	"context"
	"encoding/json"
	"fmt"
	"html"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/ops"
)

// thousands is a deployment with 2,000 consumers, for the last of which a delivery is DEAD.
type thousands struct{ *fake }

func (thousands) Consumers(context.Context) ([]ops.Consumer, error) {
	all := make([]ops.Consumer, 2000)
	for i := range all {
		all[i] = ops.Consumer{Name: fmt.Sprintf("Consumer%04d", i), State: ops.Running}
	}
	all[1999].Dead = ops.Count{Count: 1}
	return all, nil
}

func (d thousands) Overview(ctx context.Context) (v ops.Overview, err error) {
	if v, err = d.fake.Overview(ctx); err == nil {
		v.Consumers, err = d.Consumers(ctx)
	}
	return v, err
}

// No consumer of thousands is cut: the page leads to all of them, and finds one by a part of its name.
func TestThousandsOfConsumersArePaged(t *testing.T) {
	t.Parallel()
	c := newConsole(thousands{&fake{text: "x"}}, Config{Authorize: Anyone(everything()), Logger: quiet()})
	row, next := regexp.MustCompile(`<tr data-key="(Consumer\d+)">`), regexp.MustCompile(`rel="next" href="([^"]+)"`)
	names := func(target string) (names []string, body string) {
		w := get(c, "/"+target)
		require.Equal(t, http.StatusOK, w.Code)
		for _, m := range row.FindAllStringSubmatch(w.Body.String(), -1) {
			names = append(names, m[1])
		}
		return names, w.Body.String()
	}
	seen := make(map[string]bool)
	for target, pages := "consumers", 0; target != ""; pages++ {
		found, body := names(target)
		require.LessOrEqual(t, len(found), pageSize)
		require.Less(t, pages, 2000/pageSize)
		for _, name := range found {
			require.False(t, seen[name], name)
			seen[name] = true
		}
		target = ""
		if m := next.FindStringSubmatch(body); m != nil {
			target = html.UnescapeString(m[1])
		}
	}
	require.Len(t, seen, 2000)
	found, _ := names("consumers?name=R1234")
	require.Equal(t, []string{"Consumer1234"}, found)

	found, body := names("")
	require.Len(t, found, overviewConsumers)
	require.Equal(t, "Consumer1999", found[0], "the one that somebody has to look at")
	require.Contains(t, body, "All 2000 consumers")

	var all []ops.Consumer
	require.NoError(t, json.Unmarshal(get(c, "/api/v1/consumers").Body.Bytes(), &all))
	require.Len(t, all, 2000)
}

// backfilled is a deployment with one consumer, which keeps the bulk operations that are started.
type backfilled struct {
	*fake

	is      ops.Consumer
	started *[]ops.NewBulk
}

func (d backfilled) Consumers(context.Context) ([]ops.Consumer, error) {
	return []ops.Consumer{d.is}, nil
}

func (d backfilled) StartBulk(_ context.Context, _ ops.Operation, b ops.NewBulk) (ops.Bulk, error) {
	*d.started = append(*d.started, b)
	return ops.Bulk{ID: b.ID}, nil
}

// The page of consumers leads to a backfill: of the type and the time that were chosen, for this consumer.
func TestConsumerIsGivenThePastFromItsPage(t *testing.T) {
	t.Parallel()
	d := backfilled{&fake{text: "x", count: 3}, ops.Consumer{Name: "Late", Types: []string{"a", "b"}, State: ops.Running}, &[]ops.NewBulk{}}
	c := newConsole(d, Config{Authorize: Anyone(everything()), Logger: quiet()})
	chosen := url.Values{"eventType": {"b"}, "since": {"24h"}}
	form := browserForm(t, get(c, "/consumers").Body.String(), "bulk-new", chosen)
	require.Equal(t, "Late", form.Get("forConsumer"))
	w := get(c, "/bulk-new?"+form.Encode())
	require.Equal(t, http.StatusOK, w.Code)
	form = browserForm(t, w.Body.String(), "bulk", url.Values{"reason": {"new in 4.2"}, "confirm": {"3"}})
	require.Equal(t, http.StatusSeeOther, post(c, "/bulk", form, "Origin", "http://example.com").Code)
	require.Len(t, *d.started, 1)
	b := (*d.started)[0]
	require.Equal(t, ops.ActionBackfill, b.Action)
	require.Equal(t, "Late", b.Consumer)
	require.Equal(t, ops.Query{EventType: "b", Since: b.Query.Since}, b.Query)
	require.WithinDuration(t, time.Now().Add(-24*time.Hour), b.Query.Since, time.Hour)

	without := func(is ops.Consumer, may ...Permission) {
		t.Helper()
		d.is = is
		c := newConsole(d, Config{Authorize: Anyone(Principal{Name: "anna", May: may}), Logger: quiet()})
		require.NotContains(t, get(c, "/consumers").Body.String(), "act-backfill")
	}
	without(d.is, View, Bulk)
	without(d.is, View, Replay)
	without(ops.Consumer{Name: "Late", State: ops.Unregistered}, everything().May...)
}

// browserForm is what a browser sends for the form with an action, when somebody fills in the rest.
func browserForm(t *testing.T, body, action string, filled url.Values) url.Values {
	t.Helper()
	all := parseHTML(t, body)
	i := slices.IndexFunc(all, func(e *element) bool { return e.name == "form" && e.attrs["action"] == action })
	require.NotEqual(t, -1, i, "no form leads to %s", action)
	sent := hiddenFields(all[i+1:])
	maps.Copy(sent, filled)
	return sent
}
