package story

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/bluecone-go/bluecone/demo/httpserver"
)

// natsServer is a NATS of the story's own, which keeps its streams in a folder.
type natsServer struct {
	program, dir, address string
	cmd                   *exec.Cmd // nil while it does not run
}

// findNATS looks where a NATS is installed, or where scripts/brokers has unpacked one.
func findNATS() (program string, err error) {
	if program, err = exec.LookPath("nats-server"); err == nil {
		return program, nil
	}
	places := []string{"/usr/sbin/nats-server", "/var/cache/bluecone/brokers/nats/bin/nats-server"}
	if cache, err := os.UserCacheDir(); err == nil {
		places = append(places, filepath.Join(cache, "bluecone", "brokers", "nats", "bin", "nats-server"))
	}
	for _, program = range places {
		if _, err := os.Stat(program); err == nil {
			return program, nil
		}
	}
	return "", errors.New("nats-server is not installed")
}

// start starts the server, on the port that it had before, and waits until it answers.
func (n *natsServer) start(ctx context.Context) error {
	if n.address == "" {
		var err error
		if n.address, err = httpserver.FreeAddress(ctx); err != nil {
			return err
		}
	}
	host, port, err := net.SplitHostPort(n.address)
	if err != nil {
		return err
	}
	args := []string{"--addr", host, "--port", port, "--jetstream", "--store_dir", n.dir, "--log", filepath.Join(n.dir, "nats.log")}
	cmd := exec.CommandContext(ctx, n.program, args...)
	if err := cmd.Start(); err != nil {
		return err
	}
	n.cmd = cmd
	return until(ctx, "NATS to answer", func() (bool, error) {
		d := net.Dialer{Timeout: time.Second}
		c, err := d.DialContext(ctx, "tcp", n.address)
		if err != nil {
			return false, nil //nolint:nilerr // it does not answer yet
		}
		return true, c.Close()
	})
}

// kill ends the server as a power cut would.
func (n *natsServer) kill() error {
	if n.cmd == nil {
		return nil
	}
	err := n.cmd.Process.Kill()
	_ = n.cmd.Wait() // it was killed
	n.cmd = nil
	return err
}
