package testbroker

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"testing"

	"github.com/bluecone-go/bluecone/internal/process"
	"github.com/bluecone-go/bluecone/internal/testcert"
)

// secure is the listener of a broker that speaks TLS, beside the other one; RocketMQ's is the same.
type secure struct {
	port string
	pool *x509.CertPool
}

// StartTLS is [Start] for a broker that speaks TLS, too.
func StartTLS(t testing.TB, name string) *Broker {
	t.Helper()
	return tended(t, name, launching{isSecure: true})
}

// SecureURL is where a broker of [StartTLS] speaks TLS.
func (b *Broker) SecureURL() *url.URL {
	u := *b.URL
	u.Host = "127.0.0.1:" + b.secure.port
	return &u
}

// Roots is the authority that has signed for a broker of [StartTLS].
func (b *Broker) Roots() *x509.CertPool { return b.secure.pool }

// certify gives the broker a certificate: ca.pem, cert.pem, key.pem, and the last two together in both.pem.
func (b *Broker) certify() error {
	port, err := process.FreePort()
	if err != nil {
		return err
	}
	set, err := testcert.New()
	if err != nil {
		return err
	}
	b.secure = &secure{port, x509.NewCertPool()}
	b.secure.pool.AppendCertsFromPEM(set.CA)
	return errors.Join(
		os.WriteFile(b.path("ca.pem"), set.CA, 0o600),
		os.WriteFile(b.path("cert.pem"), set.Cert, 0o600),
		os.WriteFile(b.path("key.pem"), set.Key, 0o600),
		os.WriteFile(b.path("both.pem"), slices.Concat(set.Key, set.Cert), 0o600))
}

// secured is the part of a broker's configuration about TLS: form with the port, and the files of the authority, the certificate
// and the key as %[1]s to %[4]s. It is empty without TLS.
func (b *Broker) secured(form string) string {
	if b.secure == nil {
		return ""
	}
	return fmt.Sprintf(form, b.secure.port, b.path("ca.pem"), b.path("cert.pem"), b.path("key.pem"))
}
