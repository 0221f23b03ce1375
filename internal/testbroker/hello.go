package testbroker

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// answers sends a hello to an address and compares the beginning of what comes back.
func answers(address, hello, want string) error {
	conn, err := dial(address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, hello); err != nil {
		return err
	}
	got := make([]byte, len(want))
	if n, err := io.ReadFull(conn, got); err != nil {
		return fmt.Errorf("it answers %q: %w", got[:n], err)
	}
	if string(got) != want {
		return fmt.Errorf("it answers %q", got)
	}
	return nil
}

// answersLine sends a hello to an address and waits for a line; it fails with a line that begins with refusal.
func answersLine(address, hello, want, refusal string) error {
	conn, err := dial(address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, hello); err != nil {
		return err
	}
	for lines := bufio.NewReader(conn); ; {
		line, err := lines.ReadString('\n')
		if err != nil {
			return err
		}
		if strings.HasPrefix(line, want) {
			return nil
		}
		if strings.HasPrefix(line, refusal) {
			return fmt.Errorf("it answers %q", line)
		}
	}
}

// listens reports whether somebody takes connections at an address.
func listens(address string) error {
	conn, err := dial(address)
	if err != nil {
		return err
	}
	return conn.Close()
}

func dial(address string) (net.Conn, error) {
	d := net.Dialer{Timeout: 2 * time.Second}
	conn, err := d.DialContext(context.Background(), "tcp", address)
	if err != nil {
		return nil, err
	}
	return conn, conn.SetDeadline(time.Now().Add(2 * time.Second))
}
