package doctor_test

import (
	"net"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/doctor"
	"github.com/bluecone-go/bluecone/internal/dbserver"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

// ownAddress is one of this machine's addresses that is not for itself only.
func ownAddress(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			return n.IP.String()
		}
	}
	t.Skip("this machine has no address but the loopback interface's")
	return ""
}

// A session that comes over a network without TLS is named, with the address from which it comes; one within the machine is not.
func TestSessionsWithoutTLSAreFound(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it starts servers")
	}
	address := ownAddress(t)
	for _, name := range testdb.Servers() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv, err := dbserver.Start(name, dbserver.Careless, dbserver.Connections(20), dbserver.Reachable(address))
			if err != nil {
				testdb.Unavailable(t, name, err)
			}
			t.Cleanup(srv.Stop)
			within := testdb.OpenDSN(t, srv.URL.String())
			require.Equal(t, doctor.OK, examine(t, within, doctor.Config{})["TLS"].Level)

			user := []string{"CREATE ROLE outside LOGIN SUPERUSER"}
			if testdb.Dialect(name) == "mysql" {
				user = []string{"CREATE USER outside@'" + address + "'", "GRANT ALL ON *.* TO outside@'" + address + "'"}
			}
			for _, s := range user {
				_, err := within.ExecContext(t.Context(), s)
				require.NoError(t, err, s)
			}
			from := *srv.URL
			from.User, from.Host = url.User("outside"), net.JoinHostPort(address, srv.URL.Port())
			found := examine(t, testdb.OpenDSN(t, from.String()), doctor.Config{})["TLS"]
			require.Equal(t, doctor.Warn, found.Level, found.Says)
			require.Equal(t, "no_tls", found.Rule)
			require.Contains(t, found.Says, "the session from "+address+" is not encrypted")
		})
	}
}
