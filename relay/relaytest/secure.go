package relaytest

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/bus"
	"github.com/bluecone-go/bluecone/relay"
)

// Secure is what [RunSecure] has to know of a private broker that speaks TLS, and of its adapter.
type Secure struct {
	// URL leads to where the broker speaks TLS, with the password that it takes now.
	URL func() string
	// Roots is the authority that has signed for the broker.
	Roots *x509.CertPool
	// SetPassword changes the password of the user, and ends all connections. Nil where that cannot be tested.
	SetPassword func(password string) error
	// Publisher and Subscriber make the two ends from a URL, without connecting.
	Publisher  func(url string, c *tls.Config) (Publisher, error)
	Subscriber func(url string, c *tls.Config) (Subscriber, error)
}

// RunSecure checks that messages go by TLS, that an authority which is not trusted and a wrong password are refused at the start, with
// an error that says so, and that a password which is changed meanwhile loses nothing.
func RunSecure(t *testing.T, s Secure) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience())
	t.Cleanup(cancel)
	by := func(roots *x509.CertPool) *world {
		c := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
		return &world{t: t, ctx: ctx, broker: Broker{
			Publisher:  func(url string) (Publisher, error) { return s.Publisher(url, c) },
			Subscriber: func(url string) (Subscriber, error) { return s.Subscriber(url, c) },
		}}
	}
	by(x509.NewCertPool()).refused(s.URL(), "certificate signed by unknown authority")
	w, in := by(s.Roots), newSink()
	before := s.URL()
	p := w.publisher(before)
	r := w.receive(before, in)
	w.publish(p, []relay.Message{message(0, 0)})
	w.eventually("a message by TLS", func() bool { return in.count() == 1 })

	if s.SetPassword == nil {
		return
	}
	require.NoError(t, s.SetPassword("rotated"))
	w.refused(before, "")
	w.eventually("a publisher that is refused because the password was changed", func() bool {
		err := p.Publish(ctx, []relay.Message{message(0, 1)})[0]
		require.Error(t, err)
		require.False(t, bus.IsPermanent(err), "nothing is wrong with the message: %v", err)
		return errors.Is(err, relay.ErrRefused)
	})
	r.stop()
	w.receive(s.URL(), in)
	w.publish(w.publisher(s.URL()), []relay.Message{message(0, 1)})
	w.eventually("a message by the new password", func() bool { return in.count() == 2 })
	in.requireRounds(t, 1, 2)
}

// refused checks that both ends are refused at the start, with an error that says something and shows no password.
func (w *world) refused(raw, says string) {
	w.t.Helper()
	u, err := url.Parse(raw)
	require.NoError(w.t, err)
	password, _ := u.User.Password()
	s, err := w.broker.Subscriber(raw)
	require.NoError(w.t, err)
	defer func() { require.NoError(w.t, s.Close()) }()
	for what, err := range map[string]error{
		"Connect of the publisher": w.publisher(raw).Connect(w.ctx), "Connect of the subscriber": s.Connect(w.ctx),
		"Receive": s.Receive(w.ctx, newSink()),
	} {
		require.ErrorIs(w.t, err, relay.ErrRefused, what)
		require.ErrorContains(w.t, err, says, what)
		require.NotContains(w.t, err.Error(), password, what)
	}
}
