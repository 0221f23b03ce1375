package ledger_test

import (
	"bytes"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/needs"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ledger"
	"github.com/bluecone-go/bluecone/ledger/ledgerv1/ledgerv1connect"
)

// The commands of docs/guides/ledger.md work, and they call every method.
func TestGuideByCurl(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		needs.Unavailable(t, "curl", "apt-get install curl", err)
	}
	page, err := os.ReadFile("../docs/guides/ledger.md")
	require.NoError(t, err)
	var script strings.Builder
	script.WriteString("set -eu\n")
	for _, block := range regexp.MustCompile("(?ms)^```sh\n(.*?)^```").FindAllStringSubmatch(string(page), -1) {
		script.WriteString(block[1])
	}
	callers := map[string]ledger.Caller{
		"shop-token":   {Name: "shop", Publish: []string{"order.*"}},
		"points-token": {Name: "points", Consume: []string{"PointsConsumer"}},
		"other-token":  {Name: "other", Consume: []string{"Other"}},
	}
	i := serve(t, testdb.Open(t, "sqlite"), ledger.Config{Authorizer: func(r *http.Request) (ledger.Caller, error) {
		return callers[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")], nil
	}})
	cmd := exec.CommandContext(t.Context(), "sh")
	cmd.Stdin = strings.NewReader(script.String())
	cmd.Env = append(os.Environ(), "LEDGER="+i.url)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Run(), out.String())
	for _, want := range []string{
		`{"eventIds":["`, `{"state":"PREPARED"}`, `{"state":"CONFIRMED"}`, `{"state":"CANCELED"}`, `{"leaseUntil":"`,
		`{"states":[{"state":"SUCCESS","error":null}]}`, `{"state":"SKIPPED"}`, `"consumer":"Other","status":"SKIPPED"`, `"dead":0}`,
	} {
		require.Contains(t, out.String(), want)
	}
	methods := regexp.MustCompile(`Ledger\w+Procedure = "/bluecone\.ledger\.v1\.Ledger/(\w+)"`)
	generated, err := os.ReadFile("ledgerv1/ledgerv1connect/ledger.connect.go")
	require.NoError(t, err)
	require.Equal(t, "bluecone.ledger.v1.Ledger", ledgerv1connect.LedgerName)
	all := methods.FindAllStringSubmatch(string(generated), -1)
	require.Len(t, all, 12)
	for _, m := range all {
		require.Regexp(t, `call \S+ `+m[1]+` `, script.String())
	}
}
