package browser_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/console"
	"github.com/bluecone-go/bluecone/console/browser"
)

// broken is a shop in which PointsConsumer has failed for some orders.
func broken(t *testing.T, n int) (*browser.Shop, []string) {
	t.Helper()
	s := shop(t, "/console/")
	var orders []string
	for range n {
		id, err := s.Order(t.Context())
		require.NoError(t, err)
		orders = append(orders, id)
	}
	require.NoError(t, s.Quiet(t.Context()))
	require.NoError(t, s.Break(t.Context(), "PointsConsumer", "permanent"))
	for _, id := range orders {
		require.NoError(t, s.Pay(t.Context(), id))
	}
	require.NoError(t, s.Quiet(t.Context()))
	return s, orders
}

// The live view refreshes, and takes nothing out of anybody's hands: a selection, an open form with
// what was typed, the focus and the row that the keyboard is at all survive; and the page says that it waits.
func TestRefreshTakesNothingOutOfHand(t *testing.T) {
	t.Parallel()
	c := chrome(t)
	s, _ := broken(t, 3)
	tab := open(t, c, browser.Look{})
	require.NoError(t, tab.Go(s.URL+"events?status=DEAD"))
	require.NoError(t, tab.Eval("localStorage.setItem('bluecone.every', '2')", nil))
	require.NoError(t, tab.Go(s.URL+"events?status=DEAD"))

	refreshed := func() { // the content is replaced by a newer one
		t.Helper()
		require.NoError(t, tab.Eval("document.querySelector('#live').dataset.old = '1'", nil))
		require.NoError(t, tab.Until("!document.querySelector('#live').dataset.old"))
	}
	beats := func() { // a beat of the refresh passes, and the content is still the same
		t.Helper()
		require.NoError(t, tab.Eval("window.beat = false; setTimeout(() => { window.beat = true }, 4500); "+
			"document.querySelector('#live').dataset.old = '1'", nil))
		require.NoError(t, tab.Until("window.beat"))
		require.NoError(t, tab.Until("document.querySelector('#live').dataset.old"))
		require.NoError(t, tab.Until("document.querySelector('.paused-badge').checkVisibility()"))
	}
	refreshed()

	require.NoError(t, tab.Press("j"))
	require.NoError(t, tab.Press("j"))
	require.NoError(t, tab.Eval("window.at = document.activeElement.getAttribute('href')", nil))
	require.NoError(t, tab.Until("window.at.startsWith('event?')"))
	refreshed()
	require.NoError(t, tab.Until("document.activeElement.getAttribute('href') === window.at && "+
		"document.querySelector('tr.here').contains(document.activeElement)"))

	require.NoError(t, tab.Press("x"))
	require.NoError(t, tab.Until("document.querySelectorAll('#live input[name=id]:checked').length === 1 && "+
		"document.querySelector('.selection').checkVisibility()"))
	beats()
	require.NoError(t, tab.Until("document.querySelectorAll('#live input[name=id]:checked').length === 1"))
	require.NoError(t, tab.Click("[data-clear]"))
	refreshed()

	require.NoError(t, tab.Press("Enter"))
	require.NoError(t, tab.Until("location.pathname.endsWith('/event') && document.readyState === 'complete'"))
	require.NoError(t, tab.Click("#act-retry-event summary"))
	require.NoError(t, tab.Fill("#act-retry-event [name=reason]", "half a sen"))
	beats()
	require.NoError(t, tab.Until("document.querySelector('#act-retry-event').open && document.activeElement.name === 'reason' && "+
		"document.activeElement.value === 'half a sen'"))
	requireQuiet(t, tab, s)
}

// The keyboard leads everywhere.
func TestKeyboard(t *testing.T) {
	t.Parallel()
	c := chrome(t)
	s, orders := broken(t, 1)
	tab := open(t, c, browser.Look{})
	require.NoError(t, tab.Go(s.URL))
	require.NoError(t, tab.Press("?"))
	require.NoError(t, tab.Until("document.querySelector('#help').open"))
	require.NoError(t, tab.Click("[data-close]"))
	require.NoError(t, tab.Press("g"))
	require.NoError(t, tab.Press("e"))
	require.NoError(t, tab.Until("location.pathname.endsWith('/events') && document.readyState === 'complete'"))
	require.NoError(t, tab.Press("/"))
	require.NoError(t, tab.Until("document.activeElement.id === 'q'"))
	require.NoError(t, tab.Fill("#q", orders[0]))
	require.NoError(t, tab.Press("Enter"))
	require.NoError(t, tab.Until("location.pathname.endsWith('/forensics') && document.readyState === 'complete'"))
	require.NoError(t, tab.Until("document.querySelector('h1').textContent === '"+orders[0]+"'"))
	requireQuiet(t, tab, s)
}

// Without JavaScript, searching, retrying one and looking at a payload work; nothing is offered that would not.
func TestWithoutJavaScript(t *testing.T) {
	t.Parallel()
	c := chrome(t)
	s, orders := broken(t, 1)
	tab := open(t, c, browser.Look{NoScript: true})
	require.NoError(t, tab.Go(s.URL))
	require.NoError(t, tab.Until("!document.querySelector('#theme').checkVisibility() && !document.querySelector('#every').checkVisibility()"))
	require.NoError(t, tab.Fill("#q", orders[0]))
	require.NoError(t, tab.Follow(".search button"))
	require.NoError(t, s.Break(t.Context(), "PointsConsumer", "off"))
	require.NoError(t, tab.Click("#act-retry-f0 summary"))
	require.NoError(t, tab.Fill("#act-retry-f0 [name=reason]", "repaired"))
	require.NoError(t, tab.Follow("#act-retry-f0 form button"))
	require.NoError(t, tab.Until("document.querySelector('.flash').checkVisibility()"))
	require.NoError(t, s.Quiet(t.Context()))
	require.NoError(t, tab.Follow(".matrix tbody a"))
	require.NoError(t, tab.Follow("form[action=payload] button"))
	require.NoError(t, tab.Until("document.querySelector('.payload').textContent.includes('orderId')"))
	requireQuiet(t, tab, s)
}

// Every page, in both themes, has no serious barrier, and is in order on a small screen.
func TestEveryPageIsAccessible(t *testing.T) {
	t.Parallel()
	c := chrome(t)
	s, orders := broken(t, 2)
	dead, err := s.App.Ops.Dead(t.Context())
	require.NoError(t, err)
	pages := []string{
		"", "events", "event?id=" + dead[0].SampleEvent, "forensics", "forensics?key=" + orders[0], "consumers", "dead", "jobs", "instances",
		"brokers", "reservations", "bulks", "bulk-new?action=retry&consumer=PointsConsumer&deliveryStatus=DEAD", "publish", "audit",
		"doctor", "nowhere",
	}
	for _, look := range []browser.Look{{}, {Dark: true, Language: "zh"}} {
		tab := open(t, c, look)
		for _, page := range pages {
			require.NoError(t, tab.Go(s.URL+page))
			requireNoBarriers(t, tab, page)
		}
		require.NoError(t, tab.Close())
	}
	small := open(t, c, browser.Look{Width: 390, Height: 800})
	for _, page := range pages[:14] {
		require.NoError(t, small.Go(s.URL+page))
		require.NoError(t, small.Until("document.documentElement.scrollWidth <= innerWidth"), page)
	}
	requireQuiet(t, small, s)
}

// The dark and the light theme can be chosen, and the choice is kept without a cookie.
func TestThemeIsKept(t *testing.T) {
	t.Parallel()
	c := chrome(t)
	s := shop(t, "/console/")
	tab := open(t, c, browser.Look{})
	require.NoError(t, tab.Go(s.URL))
	require.NoError(t, tab.Click("#theme"))
	require.NoError(t, tab.Until("document.documentElement.dataset.theme === 'dark'"))
	require.NoError(t, tab.Go(s.URL+"events"))
	require.NoError(t, tab.Until("document.documentElement.dataset.theme === 'dark' && document.cookie === ''"))
	requireQuiet(t, tab, s)
}

// What the tests load is what the licence note says.
func TestVendoredFileIsNoted(t *testing.T) {
	t.Parallel()
	note, err := os.ReadFile("testdata/README.md")
	require.NoError(t, err)
	require.Regexp(t, regexp.MustCompile("axe-core 4.14.1"), string(note))
	require.Contains(t, axe[:200], "4.14.1")
}

// A browser that is given a name and a password sends them only when it is asked: a console behind console.BasicAuth asks, and
// the whole page comes, with what it needs.
func TestBrowserAnswersBasicAuth(t *testing.T) {
	t.Parallel()
	check, err := console.Users(console.User{Name: "rita", Password: "staple-battery-horse", May: console.ReadOnly()})
	require.NoError(t, err)
	s, err := browser.OpenShop(t.Context(), t.TempDir(), "/ops/", console.BasicAuth(check))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	tab := open(t, chrome(t), browser.Look{})
	require.NoError(t, tab.Go(strings.Replace(s.URL, "http://", "http://rita:staple-battery-horse@", 1)+"consumers"))
	text, err := tab.Text()
	require.NoError(t, err)
	require.Contains(t, text, "PointsConsumer")
	var styled bool
	require.NoError(t, tab.Eval("document.styleSheets.length > 0 && document.styleSheets[0].cssRules.length > 0", &styled))
	require.True(t, styled, "the style sheet came too")
}
