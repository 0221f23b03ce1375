package testbroker

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/bluecone-go/bluecone/internal/process"
)

// secure is the listener of a broker that speaks TLS, beside the other one.
type secure struct {
	port string
	pool *x509.CertPool
}

// StartTLS is [Start] for a broker that speaks TLS, too: not RocketMQ.
func StartTLS(t testing.TB, name string) *Broker {
	t.Helper()
	b, err := start(t, name, launching{isSecure: true})
	if err != nil {
		t.Fatalf("testbroker: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("testbroker: %s said:\n%s", name, b.Log())
		}
		b.Stop()
	})
	return b
}

// SecureURL is where a broker of [StartTLS] speaks TLS.
func (b *Broker) SecureURL() *url.URL {
	u := *b.URL
	u.Host = "127.0.0.1:" + b.secure.port
	return &u
}

// Roots is the authority that has signed for a broker of [StartTLS].
func (b *Broker) Roots() *x509.CertPool { return b.secure.pool }

// certify makes an authority and has it sign for 127.0.0.1: ca.pem, cert.pem, key.pem, and the last two together in both.pem.
func (b *Broker) certify() error {
	port, err := process.FreePort()
	if err != nil {
		return err
	}
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "an authority for tests"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	server := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "a broker for tests"}, NotBefore: authority.NotBefore,
		NotAfter: authority.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	signer, err1 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	key, err2 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	ca, err1 := x509.CreateCertificate(rand.Reader, authority, authority, signer.Public(), signer)
	cert, err2 := x509.CreateCertificate(rand.Reader, server, authority, key.Public(), signer)
	private, err3 := x509.MarshalPKCS8PrivateKey(key)
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	b.secure = &secure{port, x509.NewCertPool()}
	b.secure.pool.AppendCertsFromPEM(block("CERTIFICATE", ca))
	certPEM, keyPEM := block("CERTIFICATE", cert), block("PRIVATE KEY", private)
	return errors.Join(
		os.WriteFile(b.path("ca.pem"), block("CERTIFICATE", ca), 0o600),
		os.WriteFile(b.path("cert.pem"), certPEM, 0o600),
		os.WriteFile(b.path("key.pem"), keyPEM, 0o600),
		os.WriteFile(b.path("both.pem"), append(keyPEM, certPEM...), 0o600))
}

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// secured is the part of a broker's configuration about TLS: form with the port, and the files of the authority, the certificate
// and the key as %[1]s to %[4]s. It is empty without TLS.
func (b *Broker) secured(form string) string {
	if b.secure == nil {
		return ""
	}
	return fmt.Sprintf(form, b.secure.port, b.path("ca.pem"), b.path("cert.pem"), b.path("key.pem"))
}
