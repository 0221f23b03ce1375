package chaos

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
)

// postgres frames what a client of PostgreSQL sends: a byte that tells the kind, four of length that
// count themselves, and the body. The first message has no kind.
type postgres struct {
	started    bool
	statements map[string]bool // prepared ones, by name, and whether they are a COMMIT
	portals    map[string]bool
}

func newPostgres() framer {
	return &postgres{statements: make(map[string]bool), portals: make(map[string]bool)}
}

const (
	pgLength     = 4
	pgLongest    = 1 << 30
	pgSSL        = 80877103
	pgEncryption = 80877104
)

func (p *postgres) next(r *bufio.Reader) (packet []byte, commit bool, refusal []byte, err error) {
	kind := byte(0)
	if p.started {
		if kind, err = r.ReadByte(); err != nil {
			return nil, false, nil, err
		}
		packet = append(packet, kind)
	}
	var length [pgLength]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, false, nil, err
	}
	n := binary.BigEndian.Uint32(length[:])
	if n < pgLength || n > pgLongest {
		return nil, false, nil, fmt.Errorf("chaos: a message of %d bytes is not PostgreSQL's", n)
	}
	packet = append(packet, length[:]...)
	body := make([]byte, n-pgLength)
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, false, nil, err
	}
	packet = append(packet, body...)
	if p.started {
		return packet, p.commits(kind, body), nil, nil
	}
	if len(body) >= pgLength {
		switch binary.BigEndian.Uint32(body) {
		case pgSSL, pgEncryption:
			return nil, false, []byte{'N'}, nil
		}
	}
	p.started = true
	return packet, false, nil, nil
}

// commits tells whether a message makes the server commit: a simple query, or the run of a prepared one.
func (p *postgres) commits(kind byte, body []byte) bool {
	first, rest := text(body)
	switch kind {
	case 'Q':
		return isCommit([]byte(first))
	case 'P': // name, statement
		statement, _ := text(rest)
		p.statements[first] = isCommit([]byte(statement))
	case 'B': // portal, name
		name, _ := text(rest)
		p.portals[first] = p.statements[name]
	case 'E': // portal
		return p.portals[first]
	}
	return false
}

// text cuts a string off that ends in a zero.
func text(body []byte) (string, []byte) {
	s, rest, _ := bytes.Cut(body, []byte{0})
	return string(s), rest
}
