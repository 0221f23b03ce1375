package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/bluecone-go/bluecone/outbox"
)

// crowds runs W5: 1, 2, 4 and 8 instances in processes of their own drain one database.
func crowds(ctx context.Context, o options, m *machine, rs *results) error {
	if m.dialect == "sqlite" {
		return nil // one writer: several processes make nothing faster
	}
	n := o.events * 6 / 10
	for range o.runs {
		for _, count := range []int{1, 2, 4, 8} {
			rate, deadlocks, err := oneCrowd(ctx, m, count, n)
			if err != nil {
				return fmt.Errorf("W5 %d instances: %w", count, err)
			}
			rs.add("W5", m.dialect, strconv.Itoa(count)+" instances", "events/s", rate)
			rs.add("W5", m.dialect, strconv.Itoa(count)+" instances, deadlocks", "in a run", float64(deadlocks))
		}
	}
	return nil
}

func oneCrowd(ctx context.Context, m *machine, count, n int) (rate float64, deadlocks int, err error) {
	db, err := m.fresh(ctx)
	if err != nil {
		return 0, 0, err
	}
	defer db.close()
	if err := db.effects(ctx); err != nil {
		return 0, 0, err
	}
	e, err := newEngine(ctx, db)
	if err != nil {
		return 0, 0, err
	}
	if err := errors.Join(e.fill(ctx, n), db.settleDown(ctx)); err != nil {
		return 0, 0, err
	}
	before, err := db.deadlocks(ctx)
	if err != nil {
		return 0, 0, err
	}
	processes := make([]*process, count)
	for i := range processes {
		if processes[i], err = startInstance(db); err != nil {
			return 0, 0, err
		}
	}
	for _, p := range processes {
		if err := p.ready(); err != nil {
			return 0, 0, err
		}
	}
	began := time.Now()
	for _, p := range processes {
		p.release()
	}
	err = db.reach(ctx, "SELECT COUNT(*) FROM effect", n*consumers)
	took := time.Since(began)
	for _, p := range processes {
		err = errors.Join(err, p.stop())
	}
	if err != nil {
		return 0, 0, err
	}
	after, err := db.deadlocks(ctx)
	if err != nil {
		return 0, 0, err
	}
	return float64(n) / took.Seconds(), after - before, db.check(ctx, n*consumers, true)
}

// deadlocks is how many there have been on the server.
func (d *database) deadlocks(ctx context.Context) (int, error) {
	if d.dialect == "mysql" {
		var name string
		var n int
		err := d.QueryRowContext(ctx, "SHOW GLOBAL STATUS LIKE 'Innodb_deadlocks'").Scan(&name, &n)
		return n, err
	}
	return d.number(ctx, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
}

// instanceEnv makes the program an instance: it says that it is ready, begins at the first line on
// its standard input and ends with the input.
const instanceEnv = "BLUECONE_BENCH_INSTANCE"

type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out io.Reader
}

func startInstance(db *database) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	u := *db.url
	u.Scheme = map[string]string{"mysql": "mysql", "postgres": "postgres"}[db.dialect]
	cmd.Env = append(os.Environ(), instanceEnv+"="+u.String())
	cmd.Stderr = os.Stderr
	p := &process{cmd: cmd}
	if p.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if p.out, err = cmd.StdoutPipe(); err != nil {
		return nil, err
	}
	return p, cmd.Start()
}

func (p *process) ready() error {
	_, err := io.ReadFull(p.out, make([]byte, 1))
	return err
}

func (p *process) release() { _, _ = io.WriteString(p.in, "\n") }

func (p *process) stop() error {
	return errors.Join(p.in.Close(), p.cmd.Wait())
}

// instance is the life of such a process.
func instance(dsn string) error {
	u, err := url.Parse(dsn)
	if err != nil {
		return err
	}
	db, err := connect(u.Scheme, u)
	if err != nil {
		return err
	}
	db.drop = func() {}
	defer db.close()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	e, err := newEngine(ctx, db)
	if err != nil {
		return err
	}
	e.ordinary(consumers)
	p, err := outbox.NewPublisher(e.ob, e.bus, outbox.PublisherConfig{})
	if err != nil {
		return err
	}
	if _, err := os.Stdout.WriteString("+"); err != nil {
		return err
	}
	line := make([]byte, 1)
	if _, err := os.Stdin.Read(line); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	return p.Run(ctx)
}
