// Package chaos is a proxy between a program and its database that treats connections badly, and
// knows a COMMIT when it passes.
//
// # Contract
//
// [Listen] starts a [Proxy] that passes everything, packet by packet, until [Proxy.Break] says what to
// do to it; [Proxy.Repair] ends that for what is connected later. It speaks MySQL and PostgreSQL over
// plain TCP: to a client that asks for TLS it says that there is none. What is cut is counted.
package chaos

import (
	"bufio"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Kind is a way to treat connections badly.
type Kind int

const (
	// Pass does nothing.
	Pass Kind = iota
	// CutBeforeCommit closes a connection in place of forwarding its COMMIT: it does not happen.
	CutBeforeCommit
	// CutAfterCommit closes a connection when the server has answered its COMMIT, and keeps the
	// answer: it has happened, and the client sees the same error as before.
	CutAfterCommit
	// BlackHole swallows everything, both ways, without closing anything. The connections that were
	// open meanwhile never come back: they end when the client gives them up.
	BlackHole
	// Delay holds up every packet of the client.
	Delay
	// Reset ends all connections, and those that are tried meanwhile, with a TCP reset.
	Reset
)

// String is the kind in a few words.
func (k Kind) String() string {
	return [...]string{"pass", "cut before COMMIT", "cut after COMMIT", "black hole", "delay", "reset"}[k]
}

// Fault is what happens to connections.
type Fault struct {
	Kind  Kind
	Every int           // of the COMMITs, every so many is cut. Default: 1, each.
	Delay time.Duration // how long Delay holds up a packet. Default: 0.
}

// framer reads one packet of a client at a time.
type framer interface {
	// next returns a whole packet, and whether it makes the server commit. A refusal is what to
	// answer the client in place of forwarding it.
	next(r *bufio.Reader) (packet []byte, commit bool, refusal []byte, err error)
}

// Proxy is a running proxy. It is safe for concurrent use.
type Proxy struct {
	listener net.Listener
	target   string
	framer   func() framer
	wg       sync.WaitGroup

	mu      sync.Mutex
	fault   Fault
	links   map[*link]struct{}
	commits int // since the fault began
	cut     atomic.Int64
	closed  bool
}

// Listen starts a proxy to the server of a dialect, "mysql" or "postgres", at host:port.
func Listen(dialect, target string) (*Proxy, error) {
	framers := map[string]func() framer{"mysql": func() framer { return mysql{} }, "postgres": newPostgres}
	if framers[dialect] == nil {
		return nil, errors.New("chaos: the protocol of " + dialect + " is not known")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it is at once
	if err != nil {
		return nil, err
	}
	p := &Proxy{listener: l, target: target, framer: framers[dialect], links: make(map[*link]struct{})}
	p.wg.Go(p.accept)
	return p, nil
}

// Addr is where the proxy listens, as host:port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Close ends the proxy and all its connections.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	for l := range p.links {
		l.close()
	}
	p.mu.Unlock()
	err := p.listener.Close()
	p.wg.Wait()
	return err
}

// Break treats connections badly from now on.
func (p *Proxy) Break(f Fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f.Every = max(f.Every, 1)
	p.fault, p.commits = f, 0
	for l := range p.links {
		switch f.Kind {
		case BlackHole:
			l.dead.Store(true)
			p.cut.Add(1)
		case Reset:
			l.reset()
			p.cut.Add(1)
		}
	}
}

// Repair ends the bad treatment.
func (p *Proxy) Repair() { p.Break(Fault{}) }

// Cut is how many connections have been ended or swallowed so far.
func (p *Proxy) Cut() int64 { return p.cut.Load() }

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.serve(client) })
	}
}

// serve forwards one connection until it ends.
func (p *Proxy) serve(client net.Conn) {
	l := &link{proxy: p, client: client, ended: make(chan struct{})}
	if !p.enter(l) {
		l.close()
		return
	}
	defer p.leave(l)
	server, err := net.DialTimeout("tcp", p.target, 5*time.Second) //nolint:noctx // it has a timeout
	if err == nil && l.connect(server) {
		p.wg.Go(l.down)
	} else if !l.dead.Load() {
		return
	}
	l.up(p.framer())
}

func (p *Proxy) enter(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.links[l] = struct{}{}
	switch p.fault.Kind {
	case BlackHole:
		l.dead.Store(true)
	case Reset:
		l.reset()
	}
	return true
}

func (p *Proxy) leave(l *link) {
	l.close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// sentence is what to do with a packet.
func (p *Proxy) sentence(commit bool) Fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.fault
	if f.Kind == CutBeforeCommit || f.Kind == CutAfterCommit {
		if commit {
			p.commits++
		}
		if !commit || p.commits%f.Every != 0 {
			return Fault{}
		}
		p.cut.Add(1)
	}
	return f
}

// link is a connection through the proxy.
type link struct {
	proxy  *Proxy
	client net.Conn
	dead   atomic.Bool // everything is swallowed
	deaf   atomic.Bool // the next answer of the server ends it

	mu     sync.Mutex
	server net.Conn
	once   sync.Once
	ended  chan struct{}
}

// connect reports false if the link has ended meanwhile.
func (l *link) connect(server net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.ended:
		_ = server.Close() // nobody is there
		return false
	default:
		l.server = server
		return true
	}
}

// up forwards what the client says.
func (l *link) up(f framer) {
	defer l.close()
	r := bufio.NewReader(l.client)
	for !l.dead.Load() {
		packet, commit, refusal, err := f.next(r)
		if err != nil {
			break
		}
		if refusal != nil {
			if _, err := l.client.Write(refusal); err != nil {
				return
			}
			continue
		}
		switch s := l.proxy.sentence(commit); s.Kind {
		case CutBeforeCommit:
			return
		case CutAfterCommit:
			l.deaf.Store(true)
		case Delay:
			select {
			case <-time.After(s.Delay):
			case <-l.ended:
				return
			}
		}
		if l.dead.Load() {
			break
		}
		if _, err := l.server.Write(packet); err != nil {
			break
		}
	}
	if l.dead.Load() {
		_, _ = io.Copy(io.Discard, r) // until the client gives up
	}
}

// down forwards what the server says.
func (l *link) down() {
	buf := make([]byte, 32<<10)
	for {
		n, err := l.server.Read(buf)
		switch {
		case l.dead.Load():
			if err != nil {
				return // the client is not told
			}
			continue
		case err != nil, l.deaf.Load():
			l.close()
			return
		}
		if _, err := l.client.Write(buf[:n]); err != nil {
			l.close()
			return
		}
	}
}

func (l *link) close() {
	l.once.Do(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		close(l.ended)
		_ = l.client.Close() // whoever is there sees it
		if l.server != nil {
			_ = l.server.Close() // as above
		}
	})
}

// reset ends the link as a machine does that knows nothing of it.
func (l *link) reset() {
	l.mu.Lock()
	for _, c := range []net.Conn{l.client, l.server} {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // then it ends without a reset
		}
	}
	l.mu.Unlock()
	l.close()
}

// isCommit tells whether a statement is a COMMIT, and nothing else.
func isCommit(text []byte) bool {
	switch string(words(text)) {
	case "COMMIT", "COMMIT WORK", "COMMIT TRANSACTION", "END":
		return true
	}
	return false
}
