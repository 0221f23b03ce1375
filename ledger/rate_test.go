package ledger_test

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/uptrace/bun"

	"github.com/bluecone-go/bluecone/internal/crowd"
	"github.com/bluecone-go/bluecone/ledger"
	"github.com/bluecone-go/bluecone/ledger/ledgerv1"
)

const slowTokens = `{
	"shop-token": {"name": "shop", "publish": ["order.*"], "consume": [], "rate": 0.001},
	"rival-token": {"name": "rival", "publish": ["order.*"], "consume": []},
	"steady-token": {"name": "steady", "publish": [], "consume": ["PointsConsumer"], "rate": 2}
}`

func slow(t *testing.T, db *bun.DB) *instance {
	t.Helper()
	file := filepath.Join(t.TempDir(), "tokens.json")
	require.NoError(t, os.WriteFile(file, []byte(slowTokens), 0o600))
	known, err := ledger.ReadTokens(file, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	return serve(t, db, ledger.Config{Authorizer: known.Authorize})
}

// Whoever makes more calls than its rate allows is told when to call again, in each protocol, and changes nothing. Others are not held
// up, and each instance counts for itself.
func TestCallsAreLimitedByCaller(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *bun.DB) {
		i, other := slow(t, db), slow(t, bun.NewDB(db.DB, db.Dialect()))
		const event = `{"events":[{"eventType":"order.paid","aggregateType":"ORDER","aggregateId":"7","payload":{},"eventId":"%"}]}`
		publish := func(id string) string { return string(bytes.Replace([]byte(event), []byte("%"), []byte(id), 1)) }
		i.ok("shop-token", "Publish", publish("first"))
		for contentType, want := range map[string]int{
			"application/json": http.StatusTooManyRequests, "application/proto": http.StatusTooManyRequests,
			"application/grpc": http.StatusOK, "text/plain": http.StatusTooManyRequests,
		} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, i.url+ledger.Path+"Publish",
				bytes.NewReader([]byte(publish("second"))))
			require.NoError(t, err)
			req.Header.Set("Content-Type", contentType)
			req.Header.Set("Authorization", "Bearer shop-token")
			resp, err := http.DefaultClient.Do(req)
			require.NoError(t, err)
			_, err = io.Copy(io.Discard, resp.Body) // what is behind it comes then
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, want, resp.StatusCode, contentType)
			says := resp.Header
			if want == http.StatusOK {
				says = resp.Trailer
				require.Equal(t, "8", says.Get("Grpc-Status"), "RESOURCE_EXHAUSTED")
			}
			seconds, err := strconv.Atoi(says.Get("Retry-After"))
			require.NoError(t, err, contentType)
			require.True(t, 900 <= seconds && seconds <= 1000, "%s: %d", contentType, seconds)
		}
		require.Equal(t, "resource_exhausted", i.refused("shop-token", "Publish", publish("second")))
		require.Equal(t, "not_found", i.refused("rival-token", "QueryConsumption", `{"eventId":"second"}`), "nothing was changed")
		other.ok("shop-token", "Publish", publish("second"))
		require.Equal(t, "unauthenticated", i.refused("unknown-token", "Publish", publish("third")))
	})
}

// The Go client waits as it is told, and calls again.
func TestClientKeepsToItsRate(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *bun.DB) {
		i := slow(t, db)
		c, err := ledger.NewClient(ledger.ClientConfig{URL: i.url, Token: "steady-token"})
		require.NoError(t, err)
		for range 12 {
			_, err := c.QueryLag(t.Context(), &ledgerv1.QueryLagRequest{Consumer: "PointsConsumer"})
			require.NoError(t, err)
		}
		require.Equal(t, "resource_exhausted", func() string {
			for range 12 {
				if a := i.call("steady-token", "QueryLag", `{"consumer":"PointsConsumer"}`); a.status != http.StatusOK {
					return a.body["code"].(string) //nolint:forcetypeassert // the answer of the contract
				}
			}
			return ""
		}(), "it is about what was spent")
	})
}

// A caller has only so many calls under way, and is told so.
func TestCallsUnderWayAreLimited(t *testing.T) {
	t.Parallel()
	all, now, who := crowd.New(1), time.Now(), ledger.Caller{Name: "shop", Rate: 1e6}
	for range ledger.MaxUnderWay {
		_, err := ledger.Enter(all, who, now)
		require.Nil(t, err)
	}
	_, err := ledger.Enter(all, who, now)
	require.ErrorContains(t, err, "shop has 5000 calls under way")
	require.Equal(t, "1", err.Meta().Get("Retry-After"))
}

// A rate that is none is refused by name.
func TestTokensRefuseARateThatIsNone(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tokens.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"shop-token": {"name": "shop", "rate": -1}}`), 0o600))
	_, err := ledger.ReadTokens(file, slog.New(slog.DiscardHandler))
	require.ErrorContains(t, err, "the rate of shop is -1")
}
