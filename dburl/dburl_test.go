package dburl_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/dburl"
)

// An option is heeded, or refused by its name: a password must not go in the clear because tls=true was ignored.
func TestUnknownOptionsAreRefusedByName(t *testing.T) {
	t.Parallel()
	for address, says := range map[string]string{
		"mysql://u:secret@127.0.0.1:1/n?useSSL=true":         `"useSSL"`,
		"mysql://u:secret@127.0.0.1:1/n?tls=yes":             "tls must be true",
		"mysql://u:secret@127.0.0.1:1/n?tls-ca=/no/such":     "tls-ca",
		"mysql://u@127.0.0.1:1/n?password=secret":            `"password"`,
		"sqlite:///tmp/x.db?mode=ro":                         "no options",
		"mysql://u:secret@127.0.0.1:1/n?tls=false&tls-ca=/x": "tls-ca",
	} {
		_, err := dburl.Open(t.Context(), address)
		require.ErrorIs(t, err, dburl.ErrDSN, address)
		require.ErrorContains(t, err, says)
		require.NotContains(t, err.Error(), "secret")
	}
}

// A password is never printed, wherever in the address it stands.
func TestErrorsDoNotShowPasswords(t *testing.T) {
	t.Parallel()
	for _, address := range []string{
		"postgres://u@127.0.0.1:1/n?password=hunter2&sslmode=disable", "postgres://u:hunter2@127.0.0.1:1/n?sslpassword=hunter2",
		"postgres://u@127.0.0.1:1/n?passfile=/x&password=hunter2#hunter2", "mysql://u:hunter2@127.0.0.1:1/n?tls=true",
	} {
		_, err := dburl.Open(t.Context(), address)
		require.ErrorIs(t, err, dburl.ErrUnreachable, address)
		require.NotContains(t, err.Error(), "hunter2")
	}
}

// A password that was not escaped ends somewhere behind what looks like the host: no part of it is shown, or asked for as a host.
func TestPasswordsThatAreNotEscapedAreRefused(t *testing.T) {
	t.Parallel()
	for _, address := range []string{
		"mysql://u:x@12/ab?hunter2@h/n", "postgres://u:x@12/hunter2@h/n", "postgresql://u:x@12/n#hunter2@h/n", "mysql://u:p@h/n?tls=hunter2@h",
	} {
		_, err := dburl.Open(t.Context(), address)
		require.ErrorIs(t, err, dburl.ErrDSN, address)
		require.ErrorContains(t, err, "there is an @ behind the host")
		require.NotContains(t, err.Error(), "hunter2")
	}
}
