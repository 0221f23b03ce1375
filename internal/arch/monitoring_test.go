package arch_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/alert"
)

const monitoring = "docs/monitoring"

// promtool runs Prometheus' own tool over the rules.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		const missing = "the rules of docs/monitoring were not checked: promtool is missing (on Debian: apt-get install prometheus)"
		if slices.Contains(strings.Split(os.Getenv("BLUECONE_TEST_REQUIRE"), ","), "promtool") {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Dir = filepath.Join(root, monitoring)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
}

// Prometheus takes the alert rules, and they fire when they should and only then.
func TestPrometheusRules(t *testing.T) {
	t.Parallel()
	promtool(t, "check", "rules", "prometheus-rules.yaml")
	promtool(t, "test", "rules", "prometheus-rules.test.yaml")
	rules, tests := read(t, monitoring+"/prometheus-rules.yaml"), read(t, monitoring+"/prometheus-rules.test.yaml")
	for _, m := range regexp.MustCompile(`- alert: (\w+)`).FindAllStringSubmatch(rules, -1) {
		fires := regexp.MustCompile(`alertname: ` + m[1] + `\n\s+exp_alerts:`)
		require.Regexp(t, fires, tests, "no test sees %s fire", m[1])
		require.Contains(t, tests, "alertname: "+m[1]+" }", "no test sees %s keep still", m[1])
	}
}

// anchors lists the sections of a document as GitHub names them.
func anchors(t *testing.T, path string) []string {
	t.Helper()
	var out []string
	for _, m := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(fenced.ReplaceAllString(read(t, path), ""), -1) {
		name := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		out = append(out, strings.ReplaceAll(name, " ", "-"))
	}
	return out
}

// Whatever names a section of the runbook leads there: the rules of package alert, those of
// Prometheus, and links between documents.
func TestEveryRunbookLinkHasItsSection(t *testing.T) {
	t.Parallel()
	sections := anchors(t, "docs/operations.md")
	for _, r := range alert.Rules() {
		require.Contains(t, sections, r.Code, "the runbook has no section for the rule %s of package alert", r.Code)
	}
	for _, code := range diagnosisRules(t) {
		require.Contains(t, sections, code, "the runbook has no section for the rule %s of package ops", code)
	}
	rules := read(t, monitoring+"/prometheus-rules.yaml")
	links := regexp.MustCompile(`runbook_url: (\S+)`).FindAllStringSubmatch(rules, -1)
	require.Len(t, links, strings.Count(rules, "- alert: "), "one for each rule")
	for _, l := range links {
		address, section, _ := strings.Cut(l[1], "#")
		require.Equal(t, "https://github.com/bluecone-go/bluecone/blob/main/docs/operations.md", address)
		require.Contains(t, sections, section, l[1])
	}
	seen := make(map[string]bool)
	for _, s := range sections {
		require.False(t, seen[s], "two sections of the runbook are called %s", s)
		seen[s] = true
	}
	for _, m := range regexp.MustCompile(`\]\(#([^)]+)\)`).FindAllStringSubmatch(read(t, "docs/operations.md"), -1) {
		require.Contains(t, sections, m[1], "a link of the runbook")
	}
}

// diagnosisRules are the codes that the constants Rule… of package ops name.
func diagnosisRules(t *testing.T) (codes []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "ops", "*.go"))
	require.NoError(t, err)
	for _, path := range files {
		code, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`(?m)^\s+Rule\w+\s+= "(\w+)"`).FindAllStringSubmatch(string(code), -1) {
			codes = append(codes, m[1])
		}
	}
	return codes
}

// dashboard is what Grafana needs of a dashboard's model.
type dashboard struct {
	UID           string `json:"uid"`
	Title         string `json:"title"`
	SchemaVersion int    `json:"schemaVersion"`
	Templating    struct {
		List []struct{ Name, Type string } `json:"list"`
	} `json:"templating"`
	Panels []panel `json:"panels"`
}

type panel struct {
	ID         int                        `json:"id"`
	Type       string                     `json:"type"`
	Title      string                     `json:"title"`
	GridPos    struct{ H, W, X, Y int }   `json:"gridPos"`
	Datasource struct{ Type, UID string } `json:"datasource"`
	Targets    []struct {
		RefID string `json:"refId"`
		Expr  string `json:"expr"`
	} `json:"targets"`
	FieldConfig struct {
		Defaults struct{ Unit string } `json:"defaults"`
	} `json:"fieldConfig"`
}

// The dashboard is one that Grafana shows as it is meant: every panel has its place, its data source
// and its queries, and uses no variable that does not exist.
func TestGrafanaDashboard(t *testing.T) {
	t.Parallel()
	text := read(t, monitoring+"/grafana-dashboard.json")
	var d dashboard
	require.NoError(t, json.Unmarshal([]byte(text), &d))
	require.NotEmpty(t, d.UID)
	require.NotEmpty(t, d.Title)
	require.GreaterOrEqual(t, d.SchemaVersion, 36)
	variables := []string{"__rate_interval", "__all"}
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name)
	}
	for _, m := range regexp.MustCompile(`\$\{?(\w+)`).FindAllStringSubmatch(text, -1) {
		require.Contains(t, variables, m[1])
	}
	ids := make(map[int]bool)
	taken := make(map[[2]int]string)
	for _, p := range d.Panels {
		require.False(t, ids[p.ID], "two panels have the id %d", p.ID)
		ids[p.ID] = true
		require.NotEmpty(t, p.Title)
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			require.Less(t, x, 24, p.Title)
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				require.Empty(t, taken[[2]int{x, y}], "%s lies over it", p.Title)
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		require.Contains(t, []string{"timeseries", "stat"}, p.Type, p.Title)
		require.Equal(t, "${datasource}", p.Datasource.UID, p.Title)
		require.NotEmpty(t, p.FieldConfig.Defaults.Unit, p.Title)
		require.NotEmpty(t, p.Targets, p.Title)
		refs := make(map[string]bool)
		for _, q := range p.Targets {
			require.NotEmpty(t, q.Expr, p.Title)
			require.False(t, refs[q.RefID], p.Title)
			refs[q.RefID] = true
		}
	}
}
