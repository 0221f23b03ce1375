package ledger_test

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/ledger"
)

// A verified certificate names its caller; an unknown one, and one that nobody has verified, do not.
func TestCertificateNamesItsCaller(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tokens.json")
	require.NoError(t, os.WriteFile(file, []byte(tokens), 0o600))
	known, err := ledger.ReadTokens(file, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	for name, c := range map[string]struct {
		cn       string
		verified bool
		token    string
		want     string
	}{
		"a verified certificate":        {"points", true, "", "points"},
		"one of somebody unknown":       {"stranger", true, "", ""},
		"one of a stranger with tokens": {"stranger", true, "shop-token", "shop"},
		"one that nobody has verified":  {"points", false, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := httptest.NewRequest("POST", "/", nil)
			cert := &x509.Certificate{Subject: pkix.Name{CommonName: c.cn}}
			r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}
			if c.verified {
				r.TLS.VerifiedChains = [][]*x509.Certificate{{cert}}
			}
			if c.token != "" {
				r.Header.Set("Authorization", "Bearer "+c.token)
			}
			got, err := known.Authorize(r)
			require.Equal(t, c.want == "", err != nil)
			require.Equal(t, c.want, got.Name)
		})
	}
}
