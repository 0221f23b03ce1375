package console

import (
	"context"
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"regexp"
	"testing"

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

// No consumer of thousands is cut: the page leads to all of them, and finds one by a part of its name (finding A14).
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
