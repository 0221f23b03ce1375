package relay

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
)

// IsUntrusted reports whether TLS has failed because of something that only a person can fix: the certificate of the broker is of an
// authority that is not trusted, of another host, or expired, or the other side does not speak TLS. An adapter adds [ErrRefused].
func IsUntrusted(err error) bool {
	var (
		verification *tls.CertificateVerificationError
		authority    x509.UnknownAuthorityError
		host         x509.HostnameError
		invalid      x509.CertificateInvalidError
		record       tls.RecordHeaderError
	)
	return errors.As(err, &verification) || errors.As(err, &authority) || errors.As(err, &host) || errors.As(err, &invalid) ||
		errors.As(err, &record)
}
