package testbroker

import (
	"errors"
	"fmt"
	"net/url"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/bluecone-go/bluecone/internal/process"
)

const (
	prefix     = "bluecone-broker-"
	startLimit = 5 * time.Minute // a broker of Java on a busy machine
	user       = "bluecone"
)

// Broker is a broker that runs, or is stopped for a while. Its methods must not be called at the same time.
type Broker struct {
	// URL is where it is and who may log in, such as nats://bluecone:secret@127.0.0.1:20001.
	URL *url.URL

	dir       *process.Dir
	front     string    // where clients reach it; empty for where it listens
	secure    *secure   // nil without TLS
	processes []*server // in the order in which they start
	// configure writes the broker's files for the password of URL.
	configure func() error
	// eval is nil for all but RabbitMQ.
	eval func(program string) error
	// admin is nil for all but RocketMQ.
	admin func(args ...string) error
	// restarted is called after a restart; nil for nothing.
	restarted func() error
	// changePassword is nil where the broker has to be started again.
	changePassword func(password string) error
}

// server is one of the processes of a broker.
type server struct {
	name    string
	command func() *exec.Cmd
	ready   func() error
	process *process.Process // nil before it was started
}

// launching says how a broker is started.
type launching struct {
	front    string // where clients reach it; empty for where it listens
	isSecure bool   // it speaks TLS, too
}

// launch starts a broker of the programs in the directory home.
func launch(name, home string, how launching) (*Broker, error) {
	process.Sweep("", prefix, func(string) {})
	dir, err := process.NewDir("", prefix+name+"-")
	if err != nil {
		return nil, err
	}
	prepare := map[string]func(b *Broker, home string) error{
		"nats": nats, "redis": redis, "rabbitmq": rabbitmq, "kafka": kafka, "rocketmq": rocketmq,
	}[name]
	b := &Broker{dir: dir, front: how.front}
	if how.isSecure {
		err = b.certify()
	}
	if err == nil {
		err = prepare(b, home)
	}
	if err == nil {
		err = b.configure()
	}
	if err == nil {
		err = b.Restart()
	}
	if err != nil {
		b.Stop()
		return nil, err
	}
	return b, nil
}

// Restart starts a broker that was killed, on the files and the ports that it had before, and waits until it answers.
func (b *Broker) Restart() error {
	if b.Running() {
		return errors.New("testbroker: the broker runs already")
	}
	isFirst := b.processes[0].process == nil
	for _, s := range b.processes {
		var err error
		if s.process, err = process.Start(s.command(), syscall.SIGTERM, b.log(s)); err != nil {
			return fmt.Errorf("start %s: %w", s.name, err)
		}
		if err := s.process.Await(s.ready, startLimit); err != nil {
			return err
		}
	}
	if isFirst || b.restarted == nil {
		return nil
	}
	return b.restarted()
}

// Running reports whether a process of the broker has not ended.
func (b *Broker) Running() bool {
	for _, s := range b.processes {
		if s.process.Running() {
			return true
		}
	}
	return false
}

// Kill ends the broker with SIGKILL. Its files stay.
func (b *Broker) Kill() {
	for _, s := range b.processes {
		s.process.Kill()
	}
}

// Freeze stops the broker in its tracks, until [Broker.Thaw]: connections stay, nobody answers.
func (b *Broker) Freeze() {
	for _, s := range b.processes {
		s.process.Freeze()
	}
}

// Thaw lets a frozen broker go on.
func (b *Broker) Thaw() {
	for _, s := range b.processes {
		s.process.Thaw()
	}
}

// SetPassword changes the password of the user, who has to log in again: it ends all connections. URL has the new password.
func (b *Broker) SetPassword(password string) error {
	if b.changePassword != nil {
		if err := b.changePassword(password); err != nil {
			return err
		}
		b.URL.User = url.UserPassword(user, password)
		return nil
	}
	b.URL.User = url.UserPassword(user, password)
	if err := b.configure(); err != nil {
		return err
	}
	b.end()
	return b.Restart()
}

// Eval runs an Erlang program in the node of a RabbitMQ.
func (b *Broker) Eval(program string) error {
	if b.eval == nil {
		return errors.New("testbroker: the broker is no RabbitMQ")
	}
	return b.eval(program)
}

// Stop ends the broker and removes its files.
func (b *Broker) Stop() {
	b.end()
	b.dir.Remove()
}

// end lets the processes shut down, the last first.
func (b *Broker) end() {
	for _, s := range slices.Backward(b.processes) {
		s.process.Stop()
	}
}

// Log is the end of what the broker's processes have said.
func (b *Broker) Log() string {
	var text strings.Builder
	for _, s := range b.processes {
		if s.process != nil {
			fmt.Fprintf(&text, "%s:\n%s\n", s.name, s.process.Log())
		}
	}
	return text.String()
}

func (b *Broker) log(s *server) string { return b.path(s.name + ".log") }

// path is a file of the broker's.
func (b *Broker) path(name string) string { return filepath.Join(b.dir.Path, name) }

// advertised is where clients reach the broker.
func (b *Broker) advertised() string {
	if b.front != "" {
		return b.front
	}
	return b.URL.Host
}

func (b *Broker) password() string {
	p, _ := b.URL.User.Password()
	return p
}
