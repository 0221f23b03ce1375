package main

import (
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/testdb"
)

// scrape reads the names of the metrics that a process exports, and of their labels.
func scrape(t *testing.T, s *server) (metrics, labels map[string]bool) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.base+"/metrics", nil)
	require.NoError(t, err)
	res, err := client.Do(req)
	require.NoError(t, err)
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	metrics, labels = make(map[string]bool), map[string]bool{"instance": true, "job": true} // Prometheus adds these
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		metrics[regexp.MustCompile(`^\w+`).FindString(line)] = true
		for _, m := range regexp.MustCompile(`(\w+)="`).FindAllStringSubmatch(line, -1) {
			labels[m[1]] = true
		}
	}
	return metrics, labels
}

func document(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "monitoring", name))
	require.NoError(t, err)
	return string(text)
}

var ours = regexp.MustCompile(`\b(?:outbox|consumer|alert|scheduler|reaper|consistency|instance)_[a-z_]+[a-z]\b`)

// expressions are all queries of the alert rules and of the dashboard.
func expressions(t *testing.T) (all []string) {
	t.Helper()
	rules := document(t, "prometheus-rules.yaml")
	for _, m := range regexp.MustCompile(`(?s)expr: (.*?)\n\s+(?:for|labels):`).FindAllStringSubmatch(rules, -1) {
		all = append(all, m[1])
	}
	require.Len(t, all, strings.Count(rules, "- alert: "))
	var d struct {
		Panels []struct {
			Targets []struct{ Expr string } `json:"targets"`
		} `json:"panels"`
	}
	require.NoError(t, json.Unmarshal([]byte(document(t, "grafana-dashboard.json")), &d))
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			all = append(all, q.Expr)
		}
	}
	return all
}

// Every metric and label that the alert rules and the dashboard name is exported by a process that has
// done some work, and every metric that is exported is in the list of docs/monitoring.
func TestMonitoringNamesWhatIsExported(t *testing.T) {
	t.Parallel()
	s := serveOn(t, testdb.DSN(t, "sqlite"), nil, "--faults")
	u := s.place()
	s.quiet()
	require.Equal(t, 200, s.post("/orders/"+u.order+"/pay", `{"payNo":"p-1"}`).status)
	s.quiet()
	metrics, labels := scrape(t, s)
	for _, expr := range expressions(t) {
		bare := regexp.MustCompile(`\{[^}]*\}`).ReplaceAllString(expr, "")
		for _, name := range ours.FindAllString(bare, -1) {
			require.True(t, metrics[name], "%s is not exported; it stands in %s", name, expr)
		}
		for _, m := range regexp.MustCompile(`[{,](\w+)[=!]~?"`).FindAllStringSubmatch(expr, -1) {
			require.True(t, labels[m[1]], "no metric has the label %s; it stands in %s", m[1], expr)
		}
		for _, m := range regexp.MustCompile(`(?:by|without) \(([^)]*)\)`).FindAllStringSubmatch(expr, -1) {
			for name := range strings.SplitSeq(m[1], ",") {
				require.True(t, labels[strings.TrimSpace(name)], "no metric has the label %s; it stands in %s", name, expr)
			}
		}
	}
	var listed []string
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\|").FindAllStringSubmatch(document(t, "README.md"), -1) {
		listed = append(listed, m[1])
	}
	var exported []string
	for name := range metrics {
		for _, part := range []string{"_bucket", "_count", "_sum"} {
			name = strings.TrimSuffix(name, part)
		}
		if ours.MatchString(name) && !slices.Contains(exported, name) {
			exported = append(exported, name)
		}
	}
	require.ElementsMatch(t, exported, listed)
}
