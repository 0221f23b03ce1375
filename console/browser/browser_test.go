package browser_test

import (
	_ "embed"
	"fmt"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/console"
	"github.com/bluecone-go/bluecone/console/browser"
)

// axe is what looks for barriers; see testdata/README.md.
//
//go:embed testdata/axe.min.js
var axe string

// chrome starts a browser, or says clearly that there is none.
func chrome(t *testing.T) *browser.Chrome {
	t.Helper()
	path := browser.Find()
	if path == "" {
		const missing = "no Chromium was found: the console was not looked at with a browser (as root on Debian: apt-get install chromium)"
		if strings.Contains(os.Getenv("BLUECONE_TEST_REQUIRE"), "chromium") {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	dir, err := os.MkdirTemp("", "bluecone-chromium-") //nolint:usetesting // t.TempDir would fail the test if the dying browser still writes
	require.NoError(t, err)
	c, err := browser.Start(path, dir)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, c.Close())
		_ = os.RemoveAll(dir)
	})
	return c
}

func shop(t *testing.T, prefix string) *browser.Shop {
	t.Helper()
	s, err := browser.OpenShop(t.Context(), t.TempDir(), prefix, console.Anyone(console.Principal{
		Name: "anna", May: append(console.Admin(), console.PayloadView),
	}))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func open(t *testing.T, c *browser.Chrome, look browser.Look) *browser.Tab {
	t.Helper()
	tab, err := c.Open(t.Context(), look)
	require.NoError(t, err)
	return tab
}

// requireQuiet checks that the pages complained about nothing, and that everything came from the console itself.
func requireQuiet(t *testing.T, tab *browser.Tab, s *browser.Shop) {
	t.Helper()
	require.Empty(t, tab.Problems())
	own, err := url.Parse(s.URL)
	require.NoError(t, err)
	for _, r := range tab.Requests() {
		u, err := url.Parse(r)
		require.NoError(t, err)
		require.True(t, u.Host == own.Host || u.Scheme == "about" || u.Scheme == "data", "it fetched %s", r)
	}
}

// requireNoBarriers lets axe look at the page: nothing serious or critical may be found.
func requireNoBarriers(t *testing.T, tab *browser.Tab, page string) {
	t.Helper()
	require.NoError(t, tab.Eval(axe+"; 0", nil))
	var found []struct {
		ID, Impact, Help string
		Nodes            []struct{ HTML, FailureSummary string }
	}
	require.NoError(t, tab.Eval("axe.run().then(r => r.violations.map(v => ({id: v.id, impact: v.impact, help: v.help, nodes: "+
		"v.nodes.map(n => ({html: n.html, failureSummary: n.failureSummary}))})))", &found))
	for _, v := range found {
		if v.Impact == "serious" || v.Impact == "critical" {
			t.Errorf("%s: %s %s: %s\n%s\n%s", page, v.Impact, v.ID, v.Help, v.Nodes[0].HTML, v.Nodes[0].FailureSummary)
		}
	}
}

// story are the words that the same story meets in a language.
type story struct{ dead, healthy, gaveUp, retryGroup, start, done, noDead string }

func stories() map[string]story {
	return map[string]story{
		"en": {
			"DEAD and wait for somebody to decide", "Healthy.", "gave up order.paid", "Retry group", "Start", "All is well",
			"No dead letters",
		},
		"zh": {"个死信等待处理", "一切正常", "的 order.paid：", "重试整组", "开始", "一切正常", "没有死信"},
	}
}

// A consumer breaks, the console says so, explains the order, and fixes all of it: under each prefix,
// in each language, with JavaScript and without.
func TestOperatorsStory(t *testing.T) {
	t.Parallel()
	c := chrome(t)
	for _, m := range []struct {
		prefix, lang string
		noScript     bool
	}{{"/console/", "en", false}, {"/", "zh", false}, {"/a/b/", "en", true}} {
		t.Run(fmt.Sprintf("%s %s script=%t", m.prefix, m.lang, !m.noScript), func(t *testing.T) {
			t.Parallel()
			s := shop(t, m.prefix)
			tell(t, s, open(t, c, browser.Look{Language: m.lang, NoScript: m.noScript}), stories()[m.lang])
		})
	}
}

func tell(t *testing.T, s *browser.Shop, tab *browser.Tab, words story) {
	t.Helper()
	ctx := t.Context()
	reload := func(page, until string) { // a second's cache may still say what was
		t.Helper()
		require.NoError(t, tab.Go(s.URL+page))
		for range 600 {
			text, err := tab.Text()
			require.NoError(t, err)
			if strings.Contains(text, until) {
				return
			}
			require.NoError(t, tab.Go(s.URL+page))
		}
		text, _ := tab.Text()
		require.Contains(t, text, until)
	}
	var orders []string
	for range 3 {
		id, err := s.Order(ctx)
		require.NoError(t, err)
		orders = append(orders, id)
	}
	require.NoError(t, s.Quiet(ctx))
	reload("", words.healthy)
	require.NoError(t, s.Break(ctx, "PointsConsumer", "permanent"))
	for _, id := range orders {
		require.NoError(t, s.Pay(ctx, id))
	}
	require.NoError(t, s.Quiet(ctx))
	reload("", words.dead)

	require.NoError(t, tab.Fill("#q", orders[1]))
	require.NoError(t, tab.Follow(".search button"))
	text, err := tab.Text()
	require.NoError(t, err)
	require.Contains(t, text, words.gaveUp)
	require.Contains(t, text, "PointsConsumer")
	require.Contains(t, text, "injected fault")

	require.NoError(t, s.Break(ctx, "PointsConsumer", "off"))
	reload("dead", "injected fault")
	require.NoError(t, tab.Follow("text="+words.retryGroup))
	require.NoError(t, tab.Fill("form[action=bulk] [name=reason]", "points service repaired"))
	require.NoError(t, tab.Fill("form[action=bulk] [name=confirm]", "3"))
	require.NoError(t, tab.Follow("text="+words.start))
	require.NoError(t, tab.Until("location.pathname.endsWith('/bulk')"))
	for {
		counts, err := s.App.Outbox.Counts(ctx)
		require.NoError(t, err)
		if counts["DEAD"] == 0 && counts["FAILED"] == 0 {
			break
		}
		require.NoError(t, tab.Go(s.URL+"bulks"))
	}
	require.NoError(t, s.Quiet(ctx))
	reload("dead", words.noDead)
	reload("", words.healthy)
	reload("forensics?key="+orders[1], words.done)
	reload("audit", "points service repaired")
	broken, err := s.App.Verify(ctx)
	require.NoError(t, err)
	require.Empty(t, broken)
	requireQuiet(t, tab, s)
}
