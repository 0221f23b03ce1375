package browser_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/console/browser"
)

// The buttons work over plain HTTP under the name of a machine, where browsers do not say whether a request is of the same site.
func TestButtonsWorkOverPlainHTTP(t *testing.T) {
	t.Parallel()
	c := chrome(t)
	s, orders := broken(t, 1)
	address := strings.Replace(s.URL, "127.0.0.1", browser.LANHost, 1)
	require.NotEqual(t, s.URL, address)
	require.NoError(t, s.Break(t.Context(), "PointsConsumer", "off"))
	tab := open(t, c, browser.Look{})
	require.NoError(t, tab.Go(address+"forensics?key="+orders[0]))
	require.NoError(t, tab.Click("#act-retry-f0 summary"))
	require.NoError(t, tab.Fill("#act-retry-f0 [name=reason]", "repaired"))
	require.NoError(t, tab.Follow("#act-retry-f0 form button"))
	require.NoError(t, tab.Until("document.querySelector('.flash').checkVisibility()"))
}
