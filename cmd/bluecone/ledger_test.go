package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/testdb"
)

// A ledger that is closed for everybody, or open for strangers, does not start.
func TestLedgerDoesNotStartUnguarded(t *testing.T) {
	t.Parallel()
	wrong := filepath.Join(t.TempDir(), "wrong.json")
	require.NoError(t, os.WriteFile(wrong, []byte(`{"secret-token": {"publish": []}}`), 0o600))
	dsn := "--dsn=sqlite://" + filepath.Join(t.TempDir(), "l.db")
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"no tokens":           {[]string{dsn}, "--tokens is missing"},
		"open to the network": {[]string{dsn, "--addr=0.0.0.0:0", "--insecure-loopback"}, "needs a loopback address"},
		"both":                {[]string{dsn, "--insecure-loopback", "--tokens=" + wrong}, "exclude each other"},
		"a wrong file":        {[]string{dsn, "--tokens=" + wrong}, "each token needs a name"},
		"a long lease":        {[]string{dsn, "--insecure-loopback", "--lease=61s"}, "Lease is 1m1s"},
		"no port":             {[]string{dsn, "--insecure-loopback", "--addr=127.0.0.1"}, "write host:port"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := program(t, "bluecone", nil, append([]string{"ledger", "serve"}, c.args...)...)
			require.NotEqual(t, 0, got.code)
			require.Contains(t, got.errors, c.says)
			require.NotContains(t, got.errors, "secret-token")
		})
	}
}

// The service migrates, answers, shows metrics, takes changed tokens over, and ends with 0 at SIGTERM.
func TestLedgerServes(t *testing.T) {
	t.Parallel()
	tokens := filepath.Join(t.TempDir(), "tokens.json")
	require.NoError(t, os.WriteFile(tokens, []byte(`{"first-token": {"name": "shop", "publish": ["order.*"], "consume": ["C"]}}`), 0o600))
	addr := freeAddr(t)
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self, "ledger", "serve", "--dsn=sqlite://"+filepath.Join(t.TempDir(), "l.db"), "--addr="+addr,
		"--tokens="+tokens)
	cmd.Env = append(os.Environ(), childEnv+"=bluecone", "BLUECONE_DSN=")
	var log strings.Builder
	cmd.Stderr = &log
	require.NoError(t, cmd.Start())
	url := "http://" + addr
	require.Eventually(t, func() bool { return get(t, url+"/readyz", "") == http.StatusOK }, testdb.Patience(), 50*time.Millisecond)
	publish := func(token string) int {
		return post(t, url+"/bluecone.ledger.v1.Ledger/Publish", token,
			`{"events":[{"eventType":"order.paid","aggregateType":"ORDER","aggregateId":"1","payload":{},"eventId":"e"}]}`)
	}
	require.Equal(t, http.StatusOK, publish("first-token"))
	require.Equal(t, http.StatusUnauthorized, publish("second-token"))
	require.Equal(t, http.StatusOK, get(t, url+"/metrics", ""))
	require.NoError(t, os.WriteFile(tokens, []byte(`{"second-token": {"name": "the shop", "publish": ["order.*"], "consume": ["C"]}}`), 0o600))
	require.Eventually(t, func() bool { return publish("second-token") == http.StatusOK }, testdb.Patience(), 100*time.Millisecond)
	require.Equal(t, http.StatusUnauthorized, publish("first-token"))
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait(), "%s", log.String())
	require.NotContains(t, log.String(), "-token")
}

func freeAddr(t *testing.T) string {
	t.Helper()
	var listen net.ListenConfig
	l, err := listen.Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

func get(t *testing.T, url, token string) int {
	t.Helper()
	return send(t, http.MethodGet, url, token, "")
}

func post(t *testing.T, url, token, body string) int {
	t.Helper()
	return send(t, http.MethodPost, url, token, body)
}

// send is the status of an answer, 0 if none came.
func send(t *testing.T, method, url, token, body string) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	return resp.StatusCode
}
