package main

import (
	"bufio"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
)

// server is a private database server, a process of its own that ends with its standard input: also if the benchmark is
// killed.
type server struct {
	url *url.URL
	cmd *exec.Cmd
	in  io.Closer
}

func startServer(dialect string) (*server, error) {
	cmd := exec.Command("go", "run", "github.com/bluecone-go/bluecone/internal/dbserver/serve", "-db", dialect, "-large")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	s := &server{cmd: cmd, in: in}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err == nil {
		s.url, err = url.Parse(strings.TrimSpace(line))
	}
	if err != nil {
		s.stop()
		return nil, fmt.Errorf("the server of %s did not say its URL: %w", dialect, err)
	}
	return s, nil
}

// stop ends the server and waits until its files are gone.
func (s *server) stop() {
	_ = s.in.Close()
	if err := s.cmd.Wait(); err != nil {
		progress("the server ended: %v", err)
	}
}

// mysqlConfig translates the URL of a database for the driver.
func mysqlConfig(u *url.URL) *mysql.Config {
	cfg := mysql.NewConfig()
	cfg.Net, cfg.Addr, cfg.DBName = "tcp", u.Host, strings.Trim(u.Path, "/")
	cfg.User = u.User.Username()
	cfg.Passwd, _ = u.User.Password()
	cfg.ParseTime, cfg.InterpolateParams, cfg.Loc = true, true, time.UTC
	return cfg
}
