package release_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/testdb"
)

// A file of docs/getting-started.md: "```go NAME", and the way it belongs to, if there is another.
var pageFile = regexp.MustCompile("(?ms)^```go (\\S+\\.go) ?(\\w*)\n(.*?)^```")

// Commands of one way only, to be run before the modules of the program are known: "```sh WAY".
var pageCommands = regexp.MustCompile("(?ms)^```sh (\\w+)\n(.*?)^```")

// differences are the calls in files of all ways that each way writes otherwise, as the page says.
var differences = map[string]map[string][][2]string{
	"sql": {
		"main.go": {{"newShop(db, ob)", "newShop(pool, ob)"}}, "points_test.go": {{"newShop(db, h.Outbox)", "newShop(db.DB, h.Outbox)"}},
	},
	"gorm": withPool("openGorm"), "sqlx": withPool("openSQLX"),
	"ent": {
		"main.go":        {{"newShop(db, ob)", "newShop(openEnt(pool), ob)"}},
		"points_test.go": {{"newShop(db, h.Outbox)", "newShop(openEnt(db.DB), h.Outbox)"}},
	},
	"pgx": {
		"main.go": {
			{
				`pool, err := sql.Open("sqlite", "file:shop.db?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)")`,
				`own, pool, err := openPGX(ctx, os.Getenv("DATABASE_URL"), "")`,
			},
			{"newShop(db, ob)", "newShop(own, ob)"},
		},
		"points_test.go": {{"db := bustest.NewDB(t)", "db, own := newPGX(t)"}, {"newShop(db, h.Outbox)", "newShop(own, h.Outbox)"}},
	},
}

// withPool are those of a library that open puts on a pool of database/sql.
func withPool(open string) map[string][][2]string {
	return map[string][][2]string{
		"main.go": {
			{"newShop(db, ob)", "newShop(" + open + "(pool), ob)"}, {"registerPoints(b)", "registerPoints(b, " + open + "(pool))"},
		},
		"points_test.go": {
			{"newShop(db, h.Outbox)", "newShop(" + open + "(db.DB), h.Outbox)"},
			{"registerPoints(h.Bus)", "registerPoints(h.Bus, " + open + "(db.DB))"},
		},
	}
}

func (u *user) followsWithBun(t *testing.T)  { u.follows(t, "bun") }
func (u *user) followsWithSQL(t *testing.T)  { u.follows(t, "sql") }
func (u *user) followsWithGorm(t *testing.T) { u.follows(t, "gorm") }
func (u *user) followsWithSQLX(t *testing.T) { u.follows(t, "sqlx") }
func (u *user) followsWithEnt(t *testing.T)  { u.follows(t, "ent") }

func (u *user) followsWithPGX(t *testing.T) {
	with := *u
	with.env = append(slices.Clone(u.env), "DATABASE_URL="+testdb.DSN(t, "postgres"))
	with.follows(t, "pgx")
}

// follows does what docs/getting-started.md says, in an empty folder.
func (u *user) follows(t *testing.T, way string) {
	page, err := os.ReadFile(filepath.Join(root, "docs", "getting-started.md"))
	require.NoError(t, err)
	dir := t.TempDir()
	address := freeAddress(t)
	write := func(name, code string) {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(strings.ReplaceAll(code, "127.0.0.1:8080", address)), 0o600))
	}
	var handler string
	files := pageFile.FindAllStringSubmatch(string(page), -1)
	for _, f := range files {
		if f[2] != "" && f[2] != way {
			continue
		}
		code := f[3]
		for _, change := range differences[way][f[1]] {
			require.Equal(t, 1, strings.Count(code, change[0]))
			require.Contains(t, string(page), "`"+change[1]+"`")
			code = strings.Replace(code, change[0], change[1], 1)
		}
		write(f[1], code)
		if f[1] == "points.go" {
			handler = code
		}
	}
	require.NotEmpty(t, handler)
	u.run(dir, "go", "mod", "init", "example.com/shop")
	for _, commands := range pageCommands.FindAllStringSubmatch(string(page), -1) {
		if commands[1] == way {
			u.runLines(dir, commands[2])
		}
	}
	u.run(dir, "go", "get", path+"@"+version(t))
	u.run(dir, "go", "mod", "tidy")
	require.Empty(t, u.run(dir, "gofmt", "-l", "."))

	s := &started{t: t, base: "http://" + address}
	stop := s.start(u, dir)
	require.Equal(t, "paid\n", s.post("/orders/7/pay", ""))
	s.awaitPoints("42")
	s.post("/orders/7/pay", "")
	require.Equal(t, "paid\n", s.post("/orders/13/pay", ""))
	require.Equal(t, "paid\n", s.post("/orders/8/pay", ""))
	s.awaitPoints("84")
	dead := s.awaitDead()
	stop()

	fixed := regexp.MustCompile(`(?s)\t\tif m\.Payload\.OrderID == "13" \{.*?\n\t\t\}\n`).ReplaceAllString(handler, "")
	fixed = strings.Replace(fixed, "\t\"errors\"\n", "", 1)
	require.Equal(t, strings.Count(handler, "\n")-4, strings.Count(fixed, "\n"), "three lines and an import")
	write("points.go", fixed)
	stop = s.start(u, dir)
	require.Contains(t, s.get("/console/event?id="+dead), `action="retry"`, "the button that the page speaks of")
	s.post("/console/api/v1/retry", fmt.Sprintf(`{"id": %q, "reason": "the cause is fixed"}`, dead))
	s.awaitPoints("126")
	stop()
	require.Contains(t, u.run(dir, "go", "test", "."), "ok")
}

// runLines runs commands, one a line, as a shell does.
func (u *user) runLines(dir, commands string) {
	for line := range strings.Lines(commands) {
		u.run(dir, "sh", "-c", line)
	}
}

// freeAddress is one on which nobody listens.
func freeAddress(t *testing.T) string {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

// started is the program of the page.
type started struct {
	t    *testing.T
	base string
}

// start builds the program and runs it until it answers. The function it returns presses Ctrl-C.
func (s *started) start(u *user, dir string) (stop func()) {
	program := filepath.Join(dir, "shop")
	u.run(dir, "go", "build", "-o", program, ".")
	cmd := exec.CommandContext(s.t.Context(), program)
	cmd.Dir, cmd.Env = dir, u.env
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	require.NoError(s.t, cmd.Start())
	s.await("it answers", func() bool { return s.get("/points") != "" })
	return func() {
		require.NoError(s.t, cmd.Process.Signal(os.Interrupt))
		require.NoError(s.t, cmd.Wait(), said.String())
		require.Contains(s.t, said.String(), "the console is at "+s.base+"/console/")
	}
}

// await asks until something is true.
func (s *started) await(what string, ok func() bool) {
	s.t.Helper()
	require.Eventually(s.t, ok, 5*time.Minute, 50*time.Millisecond, what)
}

func (s *started) awaitPoints(want string) {
	s.t.Helper()
	s.await(want+" points", func() bool { return s.get("/points") == want+"\n" })
}

// awaitDead waits for the dead letter that the console shows, and answers its event.
func (s *started) awaitDead() string {
	s.t.Helper()
	var found struct{ Rows []struct{ EventID string } }
	s.await("a dead letter", func() bool {
		return json.Unmarshal([]byte(s.get("/console/api/v1/events?status=DEAD")), &found) == nil && len(found.Rows) == 1
	})
	require.Contains(s.t, s.get("/console/forensics?key=13"), "order 13 brings bad luck")
	return found.Rows[0].EventID
}

// get is what an address answers, empty if it does not.
func (s *started) get(path string) string { return s.ask(http.MethodGet, path, "") }

func (s *started) post(path, body string) string { return s.ask(http.MethodPost, path, body) }

func (s *started) ask(method, path, body string) string {
	req, err := http.NewRequestWithContext(s.t.Context(), method, s.base+path, strings.NewReader(body))
	if err != nil {
		return ""
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return ""
	}
	defer func() { _ = resp.Body.Close() }()
	answer, _ := io.ReadAll(resp.Body)
	return string(answer)
}
