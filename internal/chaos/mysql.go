package chaos

import (
	"bufio"
	"bytes"
	"io"
)

// mysql frames what a client of MySQL or MariaDB sends: three bytes of length, one of sequence, and
// the payload. A statement is the first packet of its sequence.
type mysql struct{}

const (
	mysqlHeader = 4
	comQuery    = 0x03
)

func (mysql) next(r *bufio.Reader) (packet []byte, commit bool, refusal []byte, err error) {
	var header [mysqlHeader]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return nil, false, nil, err
	}
	length := int(header[0]) | int(header[1])<<8 | int(header[2])<<16
	packet = append(make([]byte, 0, mysqlHeader+length), header[:]...)[:mysqlHeader+length]
	if _, err := io.ReadFull(r, packet[mysqlHeader:]); err != nil {
		return nil, false, nil, err
	}
	payload := packet[mysqlHeader:]
	commit = header[3] == 0 && len(payload) > 0 && payload[0] == comQuery && isCommit(payload[1:])
	return packet, commit, nil, nil
}

const longestCommit = 64

// words are the words of a short statement in capitals, with one space between them.
func words(text []byte) []byte {
	if len(text) > longestCommit {
		return nil
	}
	text = bytes.TrimRight(text, "; \t\r\n\x00")
	return bytes.ToUpper(bytes.Join(bytes.Fields(text), []byte(" ")))
}
