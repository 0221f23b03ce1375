package crash_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/uptrace/bun"
	"github.com/uptrace/bun/dialect/mysqldialect"
	"github.com/uptrace/bun/dialect/pgdialect"

	"github.com/bluecone-go/bluecone/internal/dbserver"
	"github.com/bluecone-go/bluecone/internal/faultdb"
	"github.com/bluecone-go/bluecone/internal/testdb"
)

const (
	envDSN    = "BLUECONE_CRASH_DSN"
	envPoint  = "BLUECONE_CRASH_POINT"  // where it happens; empty tells all points
	envAction = "BLUECONE_CRASH_ACTION" // kill, freeze or cut
)

func TestMain(m *testing.M) {
	life := child
	if os.Getenv(envLoop) != "" {
		life = loop
	} else if os.Getenv(envDSN) == "" {
		testdb.Main(m)
		return
	}
	if err := life(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// child is the process that meets its fate.
func child(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	f := &fate{point: os.Getenv(envPoint), action: os.Getenv(envAction)}
	db, err := open(os.Getenv(envDSN), faultdb.Hook{
		Before: func(_ context.Context, s faultdb.Step) error { return f.reach(s, "before") },
		After:  func(_ context.Context, s faultdb.Step) error { return f.reach(s, "after") },
	})
	if err != nil {
		return err
	}
	err = live(ctx, db, func(id string) { fmt.Println("committed", id) }) //nolint:forbidigo // to the parent
	return errors.Join(err, db.Close())
}

// fate ends, freezes or cuts off the process at a point, once.
type fate struct {
	point, action string

	mu   sync.Mutex
	seen map[string]bool
	done bool
}

func (f *fate) reach(s faultdb.Step, when string) error {
	name := where() + ": " + when + " " + what(s)
	f.mu.Lock()
	hit := name == f.point && !f.done
	f.done = f.done || hit
	first := f.point == "" && !f.seen[name]
	if first {
		if f.seen == nil {
			f.seen = make(map[string]bool)
		}
		f.seen[name] = true
	}
	f.mu.Unlock()
	if first {
		fmt.Println("point", name) //nolint:forbidigo // to the parent
	}
	if !hit {
		return nil
	}
	fmt.Println("reached") //nolint:forbidigo // to the parent
	switch f.action {
	case "kill":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // the signal is on its way
	case "freeze":
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		return nil
	default:
		return faultdb.ErrCut
	}
}

// where is the innermost file of the library, or of the test's own handlers, that asks for the step.
func where() string {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs)])
	asked := false // the hook's own frames are behind us
	for {
		f, more := frames.Next()
		_, in, own := strings.Cut(f.Function, "bluecone-go/bluecone/")
		switch {
		case strings.HasPrefix(in, "internal/faultdb"):
			asked = true
		case own && asked && strings.HasPrefix(in, "internal/crash_test"):
			return application
		case own && asked && !strings.HasSuffix(in, "inTx") && !strings.HasPrefix(in, "internal/dialect"):
			pkg, _, _ := strings.Cut(in, ".")
			return pkg + "/" + filepath.Base(f.File)
		}
		if !more {
			return application // a transaction that database/sql ends by itself
		}
	}
}

const application = "the application"

// what is the verb and the table of a statement.
func what(s faultdb.Step) string {
	text, rest := string(s.Op), s.Query
	for rest != "" && (strings.HasPrefix(rest, "--") || rest[0] == '\n') {
		_, rest, _ = strings.Cut(rest, "\n")
	}
	words := strings.Fields(rest)
	if len(words) > 0 {
		text = words[0]
	}
	for _, w := range words {
		w = strings.Trim(w, "`\"(),;")
		if strings.HasPrefix(w, "bc_") || w == "effect" || w == "business" || w == "reservation" {
			return text + " " + w
		}
	}
	return text
}

// open opens a pool whose statements go through the hook. The server takes its locks from a client
// that says nothing for two seconds, as a server of a real deployment does after some minutes.
func open(dsn string, h faultdb.Hook) (*bun.DB, error) {
	u, err := url.Parse(dsn)
	if err != nil {
		return nil, err
	}
	switch u.Scheme {
	case "mysql":
		cfg := dbserver.MySQLConfig(u)
		cfg.Params = map[string]string{"wait_timeout": "2"}
		c, err := mysql.NewConnector(cfg)
		if err != nil {
			return nil, err
		}
		pool := sql.OpenDB(faultdb.Wrap(c, h))
		pool.SetMaxOpenConns(8)
		return bun.NewDB(pool, mysqldialect.New()), nil
	case "postgres":
		cfg, err := pgx.ParseConfig(dsn)
		if err != nil {
			return nil, err
		}
		cfg.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
		cfg.RuntimeParams["idle_in_transaction_session_timeout"] = "2000"
		pool := sql.OpenDB(faultdb.Wrap(stdlib.GetConnector(*cfg), h))
		pool.SetMaxOpenConns(8)
		return bun.NewDB(pool, pgdialect.New()), nil
	}
	return nil, errors.New("no such database")
}
