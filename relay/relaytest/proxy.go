package relaytest

import (
	"context"
	"net"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// proxy stands between an adapter and its broker.
type proxy struct {
	listener net.Listener
	wg       sync.WaitGroup

	mu     sync.Mutex
	target string // empty while there is no broker
	conns  map[net.Conn]struct{}
	mute   bool          // nothing of what the broker says arrives
	said   chan struct{} // closed when the broker has said something while it was mute
}

func newProxy(t testing.TB) *proxy {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{listener: listener, conns: make(map[net.Conn]struct{})}
	p.wg.Go(p.accept)
	t.Cleanup(func() {
		_ = listener.Close() // the test has ended
		p.lead("")
		p.wg.Wait()
	})
	return p
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

// lead makes new connections lead to target, or nowhere, and cuts those that there are.
func (p *proxy) lead(target string) {
	p.mu.Lock()
	p.target = target
	p.mu.Unlock()
	p.cut()
}

// cut breaks all connections. They may be made again.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mute = false
	for c := range p.conns {
		_ = c.Close() // it is of no use to anybody any more
	}
}

// silence keeps back what the broker says from now on, until the next cut. The channel is closed when there is such a thing.
func (p *proxy) silence() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mute, p.said = true, make(chan struct{})
	return p.said
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		target := p.target
		p.mu.Unlock()
		if target == "" {
			_ = client.Close() // as if nobody listened
			continue
		}
		server, err := new(net.Dialer).DialContext(context.Background(), "tcp", target)
		if err != nil {
			_ = client.Close() // likewise
			continue
		}
		p.mu.Lock()
		p.conns[client], p.conns[server] = struct{}{}, struct{}{}
		p.mu.Unlock()
		p.wg.Go(func() { p.pump(server, client, false) })
		p.wg.Go(func() { p.pump(client, server, true) })
	}
}

// pump copies until one of the two ends.
func (p *proxy) pump(to, from net.Conn, isBroker bool) {
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, c := range []net.Conn{to, from} {
			_ = c.Close() // the other direction closes it, too
			delete(p.conns, c)
		}
	}()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 && (!isBroker || !p.swallows()) {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// swallows reports whether what the broker has just said is kept back.
func (p *proxy) swallows() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mute && p.said != nil {
		close(p.said)
		p.said = nil
	}
	return p.mute
}
