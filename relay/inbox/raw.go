package inbox

import (
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/bluecone-go/bluecone/relay"
)

// rawMessage is the payload of an undecodable event: the message as it came, for people, and to be landed again.
type rawMessage struct {
	Error       string            `json:"error"`
	Topic       string            `json:"topic"`
	Partition   string            `json:"partition"`
	Offset      string            `json:"offset,omitempty"`
	Nanos       int64             `json:"nanos,omitempty"` // its time at the broker, since the epoch
	ContentType string            `json:"contentType"`
	Attributes  map[string]string `json:"attributes"`
	Headers     map[string]string `json:"headers"`
	Size        int               `json:"size"`                 // of the whole body, in bytes
	Body        string            `json:"body,omitempty"`       // if it is text
	BodyBase64  []byte            `json:"bodyBase64,omitempty"` // and if it is none
	Cut         bool              `json:"cut,omitempty"`        // this is only a part of it
}

// body is what was kept of the body.
func (m rawMessage) body() []byte {
	if m.BodyBase64 != nil {
		return m.BodyBase64
	}
	return []byte(m.Body)
}

// kept is as much of a message as is kept.
func kept(r relay.Received, why error) rawMessage {
	k := keeper{left: keptHeaderBytes, cut: len(r.Body) > keptBody}
	m := rawMessage{
		Error: clip(why.Error(), 500), Topic: clip(r.Topic, 200), Partition: clip(r.Partition, 200), Offset: clip(r.Offset, 64),
		Nanos: nanos(r.Time), ContentType: k.text(r.ContentType, 200), Attributes: k.texts(r.Attributes), Headers: k.texts(r.Headers),
		Size: len(r.Body),
	}
	body := r.Body[:min(len(r.Body), keptBody)]
	if utf8.Valid(body) && !strings.Contains(string(body), "\x00") {
		m.Body = string(body)
	} else {
		m.BodyBase64 = body
	}
	m.Cut = k.cut
	return m
}

// keeper makes texts storable and short, and knows whether anything was lost.
type keeper struct {
	left int // bytes of headers that may still be kept
	cut  bool
}

func (k *keeper) text(s string, most int) string {
	short := clip(s, most)
	k.cut = k.cut || short != s
	return short
}

func (k *keeper) texts(all map[string]string) map[string]string {
	out := make(map[string]string)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if k.left -= len(name) + len(all[name]); k.left < 0 {
			k.cut = true
			break
		}
		out[k.text(name, maxHeaderBytes)] = k.text(all[name], maxHeaderBytes)
	}
	return out
}
