package doctor

import (
	"context"
	"net"
	"strings"
)

// encryption asks about the doctor's own session. What does not leave the machine needs no TLS.
func encryption(ctx context.Context, x *exam) ([]Finding, error) {
	cipher, client, err := session(ctx, x)
	if err != nil || cipher != "" || isLocal(client) {
		return nil, err
	}
	return warn("no_tls", "the session from {client} is not encrypted: whoever is on the way can read and change events",
		"turn TLS on in the DSN (docs/security.md), and let the server demand it", values{"client": client}), nil
}

// session is the cipher of a session, empty for none, and the address from which the server sees it come.
func session(ctx context.Context, x *exam) (cipher, client string, err error) {
	if x.d.Name == "postgres" {
		row, err := x.one(ctx, "SELECT CASE WHEN s.ssl THEN s.cipher ELSE '' END, COALESCE(host(inet_client_addr()), '') "+
			"FROM pg_stat_ssl s WHERE s.pid = pg_backend_pid()", 2)
		if err != nil {
			return "", "", err
		}
		return row[0], row[1], nil
	}
	status, err := x.one(ctx, "SHOW SESSION STATUS LIKE 'Ssl_cipher'", 2)
	if err != nil {
		return "", "", err
	}
	user, err := x.one(ctx, "SELECT USER()", 1)
	if err != nil {
		return "", "", err
	}
	return status[1], user[0][strings.LastIndex(user[0], "@")+1:], nil
}

// isLocal tells whether a session comes from the server's own machine: by a socket or the loopback interface.
func isLocal(client string) bool {
	return client == "" || client == "localhost" || net.ParseIP(client).IsLoopback()
}
