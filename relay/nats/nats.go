// Package nats is bluecone's adapter for NATS JetStream: a relay.Publisher and a relay.Subscriber.
//
// The URL is nats://user:password@host:port/STREAM, and tls:// in place of nats:// where the server wants TLS. The stream is created
// where it is missing, with the subjects STREAM.>, on disk, and nothing removed, unless the URL says ?create=false. An event has the
// subject STREAM.<aggregate type>.<aggregate id>, or what relay.Config.Destination says, which has to be a subject of the stream. In names
// every byte but letters, digits, - and _ is written as %XX.
//
// A message is published when the stream has acknowledged it. The server drops what is repeated within the stream's window for duplicates
// (2 minutes by default); an inbox drops what comes later. Attributes are headers with the prefix ce-.
//
// A subscriber reads the whole stream through one durable consumer, which all instances of an inbox share; one of them fetches at a time,
// because JetStream would give each a part, and the order were lost. What was given to an instance that has died comes again
// before anything later: the subscriber makes the consumer again where the last acknowledged message stands.
package nats

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/bluecone-go/bluecone/relay"
)

// Form is how the URL of a stream is written.
const Form = "nats://user:password@host:port/STREAM"

// Config configures both ends. The zero value works.
type Config struct {
	// Durable is the name of the consumer on the server: services that each want every message need names of their own. Letters,
	// digits, - and _. Default: "bluecone-inbox".
	Durable string
	// TLS is how to speak TLS. Default: nil, TLS by the system's certificates if the server asks for it.
	TLS *tls.Config
	// Timeout is how long a connection, a confirmation or an answer of the server may take. Default: 5 s.
	Timeout time.Duration
	// Logger is told once that the server is away, and once that it is back. Default: slog.Default().
	Logger *slog.Logger
}

var name = regexp.MustCompile(`^[A-Za-z0-9_-]{1,200}$`)

// open checks URL and configuration, and connects to nothing.
func open(raw string, cfg Config) (*conn, error) {
	form := Form
	if strings.HasPrefix(raw, "tls:") {
		form = "tls" + strings.TrimPrefix(Form, "nats")
	}
	u, err := relay.ParseURL(raw, form, "create")
	if err != nil {
		return nil, err
	}
	mayCreate, err := relay.MayCreate(u)
	if err != nil {
		return nil, err
	}
	stream := strings.TrimPrefix(u.Path, "/")
	if !name.MatchString(stream) {
		return nil, fmt.Errorf("%w: the stream is %q: it must be letters, digits, - or _, such as nats://host:port/ORDERS", relay.ErrURL, stream)
	}
	cfg.Durable = cmp.Or(cfg.Durable, "bluecone-inbox")
	if !name.MatchString(cfg.Durable) {
		return nil, fmt.Errorf("nats.Config.Durable is %q: it must be letters, digits, - or _", cfg.Durable)
	}
	if cfg.Timeout < 0 {
		return nil, fmt.Errorf("nats.Config.Timeout is %v: it must not be negative", cfg.Timeout)
	}
	cfg.Timeout = cmp.Or(cfg.Timeout, 5*time.Second)
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	u.RawQuery, u.Path = "", ""
	return &conn{url: u, stream: stream, mayCreate: mayCreate, cfg: cfg}, nil
}

// subject is where a message goes.
func subject(stream string, m relay.Message) string {
	if m.Destination != "" {
		return m.Destination
	}
	return stream + "." + escape(m.AggregateType, isToken) + "." + escape(m.AggregateID, isToken)
}

// escape writes what is not plain as %XX.
func escape(s string, isPlain func(b byte) bool) string {
	var out strings.Builder
	for i := range len(s) {
		if isPlain(s[i]) {
			out.WriteByte(s[i])
		} else {
			fmt.Fprintf(&out, "%%%02X", s[i])
		}
	}
	return cmp.Or(out.String(), "_")
}

func isToken(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '-' || b == '_'
}

// isHeader reports whether the CloudEvents binding writes a byte of a header as it is.
func isHeader(b byte) bool { return b > 0x20 && b < 0x7f && b != '"' && b != '%' }

// unescaped is the text of a header.
func unescaped(s string) string {
	if text, err := url.PathUnescape(s); err == nil {
		return text
	}
	return s
}
