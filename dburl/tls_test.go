package dburl_test

import (
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/dburl"
	"github.com/bluecone-go/bluecone/internal/dbserver"
	"github.com/bluecone-go/bluecone/internal/testcert"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// certify makes a certificate for 127.0.0.1 in dir, its key, and the authority that vouches for it.
func certify(t *testing.T, dir string) (ca, cert, key string) {
	t.Helper()
	set, err := testcert.New()
	require.NoError(t, err)
	write := func(name string, content []byte) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, content, 0o600))
		require.NoError(t, os.Chmod(path, 0o644)) // the server is another user
		return path
	}
	return write("ca.pem", set.CA), write("cert.pem", set.Cert), write("key.pem", set.Key)
}

// TestTLSToEachDatabase speaks to servers with a certificate as docs/security.md says: encrypted, and to nobody else.
func TestTLSToEachDatabase(t *testing.T) {
	t.Parallel()
	for _, name := range testdb.Servers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, err := os.MkdirTemp("", "bluecone-tls-") //nolint:usetesting // another user has to get at the files
			require.NoError(t, err)
			t.Cleanup(func() { _ = os.RemoveAll(dir) })
			require.NoError(t, os.Chmod(dir, 0o755))
			ca, cert, key := certify(t, dir)
			require.NoError(t, dbserver.Owned(name, key))
			server, err := dbserver.Start(name, dbserver.Durable, dbserver.TLS(dbserver.Certificate{Cert: cert, Key: key}))
			if err != nil {
				testdb.Unavailable(t, name, err)
			}
			t.Cleanup(server.Stop)
			other := t.TempDir()
			stranger, _, _ := certify(t, other)

			postgres := testdb.Dialect(name) == "postgres"
			address := func(ca string) string {
				u := *server.URL
				if postgres {
					u.RawQuery = url.Values{"sslmode": {"verify-full"}, "sslrootcert": {ca}}.Encode()
				} else {
					u.Path, u.RawQuery = "/mysql", url.Values{"tls": {"true"}, "tls-ca": {ca}}.Encode()
				}
				return u.String()
			}
			db, err := dburl.Open(t.Context(), address(ca))
			require.NoError(t, err)
			defer db.Close()
			var cipher, variable string
			if postgres {
				require.NoError(t, db.QueryRowContext(t.Context(), "SELECT cipher FROM pg_stat_ssl WHERE pid = pg_backend_pid()").Scan(&cipher))
			} else {
				require.NoError(t, db.QueryRowContext(t.Context(), "SHOW SESSION STATUS LIKE 'Ssl_cipher'").Scan(&variable, &cipher))
			}
			require.NotEmpty(t, cipher)
			_, err = dburl.Open(t.Context(), address(stranger))
			require.ErrorIs(t, err, dburl.ErrUnreachable, "somebody else's certificate")
		})
	}
}
