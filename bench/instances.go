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
	n := o.events / 2
	for range o.runs {
		for _, count := range o.crowds {
			for _, c := range []crowd{{count, false}, {count, true}} {
				rate, deadlocks, err := c.run(ctx, m, n)
				if err != nil {
					return fmt.Errorf("W5 %s: %w", c.name(), err)
				}
				rs.add("W5", m.dialect, c.name(), "events/s", rate)
				rs.add("W5", m.dialect, c.name()+", deadlocks", "in a run", float64(deadlocks))
			}
		}
	}
	return nil
}

var crowdSizes = []int{1, 2, 4, 8} //nolint:gochecknoglobals // a constant

// crowd is a number of instances, or of processes that work on bluecone's tables without it: what
// those lose by being many is not its doing.
type crowd struct {
	count  int
	byHand bool
}

func (c crowd) name() string {
	name := strconv.Itoa(c.count) + " instances"
	if c.byHand {
		return "by hand on bluecone's tables, " + name
	}
	return name
}

// run drains n events with the crowd.
func (c crowd) run(ctx context.Context, m *machine, n int) (rate float64, deadlocks int, err error) {
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
	processes := make([]*process, c.count)
	for i := range processes {
		if processes[i], err = startInstance(db, c.byHand); err != nil {
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
	err = db.gathered(ctx, n*consumers)
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
	return float64(n) / took.Seconds(), after - before, db.check(ctx, n*consumers, !c.byHand)
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
// its standard input and ends with the input. With handEnv it works by hand.
const (
	instanceEnv = "BLUECONE_BENCH_INSTANCE"
	handEnv     = "BLUECONE_BENCH_BY_HAND"
)

type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out io.Reader
}

func startInstance(db *database, byHand bool) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	u := *db.url
	u.Scheme = map[string]string{"mysql": "mysql", "postgres": "postgres"}[db.dialect]
	cmd.Env = append(os.Environ(), instanceEnv+"="+u.String())
	if byHand {
		cmd.Env = append(cmd.Env, handEnv+"=1")
	}
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
	work, err := workOf(ctx, db, os.Getenv(handEnv) != "")
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
	return work(ctx)
}

// workOf is what an instance does until it is stopped.
func workOf(ctx context.Context, db *database, byHand bool) (work func(context.Context) error, err error) {
	if byHand {
		l := &limit{db: db, tables: full(db), workers: 8, batch: 100}
		return func(ctx context.Context) error {
			if err := l.drain(ctx); err != nil && ctx.Err() == nil {
				return err
			}
			<-ctx.Done()
			return nil
		}, nil
	}
	e, err := newEngine(ctx, db)
	if err != nil {
		return nil, err
	}
	e.ordinarySQL(consumers)
	p, err := outbox.NewPublisher(e.ob, e.bus, outbox.PublisherConfig{})
	if err != nil {
		return nil, err
	}
	return p.Run, nil
}
