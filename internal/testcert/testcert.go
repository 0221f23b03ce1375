// Package testcert makes certificates for the servers that tests start.
package testcert

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"time"
)

// Set is a server's certificate for 127.0.0.1 with its key, and the authority that has signed it and nothing else. All are PEM.
type Set struct{ CA, Cert, Key []byte }

// New makes a set that is valid for a day.
func New() (Set, error) {
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "an authority for tests"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	server := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "a server for tests"}, NotBefore: authority.NotBefore,
		NotAfter: authority.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	signer, err1 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	key, err2 := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err := errors.Join(err1, err2); err != nil {
		return Set{}, err
	}
	ca, err1 := x509.CreateCertificate(rand.Reader, authority, authority, signer.Public(), signer)
	cert, err2 := x509.CreateCertificate(rand.Reader, server, authority, key.Public(), signer)
	private, err3 := x509.MarshalPKCS8PrivateKey(key)
	set := Set{CA: block("CERTIFICATE", ca), Cert: block("CERTIFICATE", cert), Key: block("PRIVATE KEY", private)}
	return set, errors.Join(err1, err2, err3)
}

func block(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
