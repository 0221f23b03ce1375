package release_test

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/mod/modfile"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"

	"github.com/bluecone-go/bluecone/internal/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

const (
	root = "../.."
	path = "github.com/bluecone-go/bluecone"
)

// tagged are the modules that a release tags: the library, and what others can install or import.
var tagged = []string{
	".", "adapter/enttx", "adapter/gormtx", "adapter/pgxtx", "adapter/sqlxtx", "dburl",
	"demo", "ledger", "cmd/bluecone", "relay", "relay/kafka", "relay/nats", "relay/rabbitmq", "relay/redis", "relay/rocketmq",
}

// user is somebody outside of this tree, with a module cache of their own and our modules behind a proxy.
type user struct {
	t   *testing.T
	dir string
	env []string
}

func newUser(t *testing.T) *user {
	t.Helper()
	cache := strings.TrimSpace(goEnv(t, "GOMODCACHE"))
	u := &user{t: t, dir: t.TempDir()}
	flags := os.Getenv("GOFLAGS") + " -modcacherw -trimpath" // what the tests are compiled with: they share what is compiled
	u.env = append(os.Environ(), "GOWORK=off", "GOFLAGS="+flags, "GOSUMDB=off", "GONOSUMDB=*",
		"GOPROXY=file://"+proxy(t)+",file://"+filepath.Join(cache, "cache", "download")+","+strings.TrimSpace(goEnv(t, "GOPROXY")),
		"GOMODCACHE="+filepath.Join(u.dir, "modules"), "GOBIN="+filepath.Join(u.dir, "bin"))
	return u
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", name).Output()
	require.NoError(t, err)
	return string(out)
}

// run runs a command in a folder of the user's and returns what it says.
func (u *user) run(dir, name string, args ...string) string {
	u.t.Helper()
	cmd := exec.CommandContext(u.t.Context(), name, args...)
	cmd.Dir, cmd.Env = dir, u.env
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	require.NoError(u.t, err, "%s %v: %s", name, args, errs.String())
	return string(out)
}

// program makes a module of the user's.
func (u *user) program(code string) (dir string) {
	u.t.Helper()
	dir, err := os.MkdirTemp(u.dir, "program")
	require.NoError(u.t, err)
	require.NoError(u.t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(code), 0o600))
	u.run(dir, "go", "mod", "init", "example.com/shop")
	u.run(dir, "go", "get", path+"@"+version(u.t))
	u.run(dir, "go", "mod", "tidy")
	return dir
}

// version is the one that the modules of this tree require of each other.
func version(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "cmd", "bluecone", "go.mod"))
	require.NoError(t, err)
	file, err := modfile.Parse("go.mod", text, nil)
	require.NoError(t, err)
	require.Empty(t, file.Replace, "go install refuses a module with a replace")
	i := slices.IndexFunc(file.Require, func(r *modfile.Require) bool { return r.Mod.Path == path })
	require.GreaterOrEqual(t, i, 0)
	return file.Require[i].Mod.Version
}

// proxy makes a folder that answers as a module proxy would if this tree were tagged.
func proxy(t *testing.T) string {
	t.Helper()
	dir, v := t.TempDir(), version(t)
	for _, in := range tagged {
		name := strings.TrimSuffix(path+"/"+in, "/.")
		at := filepath.Join(dir, filepath.FromSlash(name), "@v")
		require.NoError(t, os.MkdirAll(at, 0o755))
		gomod, err := os.ReadFile(filepath.Join(root, in, "go.mod"))
		require.NoError(t, err)
		info, err := json.Marshal(map[string]any{"Version": v, "Time": time.Now().UTC()})
		require.NoError(t, err)
		for file, content := range map[string][]byte{v + ".mod": gomod, v + ".info": info, "list": []byte(v + "\n")} {
			require.NoError(t, os.WriteFile(filepath.Join(at, file), content, 0o600))
		}
		file, err := os.Create(filepath.Join(at, v+".zip"))
		require.NoError(t, err)
		require.NoError(t, zip.CreateFromDir(file, module.Version{Path: name, Version: v}, filepath.Join(root, in)))
		require.NoError(t, file.Close())
	}
	return dir
}

// What a release tags is used by somebody who has nothing of this tree.
func TestTaggedModulesWorkOutsideThisTree(t *testing.T) {
	t.Parallel()
	u := newUser(t)
	t.Run("the command is installed by its name and knows its version", u.installs)     //nolint:paralleltest // they share what they build
	t.Run("the quick start of the README is a program to copy", u.copiesTheQuickStart)  //nolint:paralleltest // likewise
	t.Run("getting started with bun", u.followsWithBun)                                 //nolint:paralleltest // likewise
	t.Run("getting started with database/sql", u.followsWithSQL)                        //nolint:paralleltest // likewise
	t.Run("getting started with gorm", u.followsWithGorm)                               //nolint:paralleltest // likewise
	t.Run("getting started with sqlx", u.followsWithSQLX)                               //nolint:paralleltest // likewise
	t.Run("getting started with ent", u.followsWithEnt)                                 //nolint:paralleltest // likewise
	t.Run("getting started with pgx", u.followsWithPGX)                                 //nolint:paralleltest // likewise
	t.Run("the smallest program lists few modules and links fewer", u.hasASmallProgram) //nolint:paralleltest // likewise
}

func (u *user) installs(t *testing.T) {
	u.run(u.dir, "go", "install", path+"/cmd/bluecone@"+version(t))
	says := u.run(u.dir, filepath.Join(u.dir, "bin", "bluecone"), "version")
	require.Contains(t, says, "bluecone "+version(t)+" go")
}

func (u *user) copiesTheQuickStart(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	require.NoError(t, err)
	_, code, found := strings.Cut(string(readme), "```go\npackage main")
	require.True(t, found)
	code, _, _ = strings.Cut(code, "\n```")
	require.NotEmpty(t, u.run(u.program("package main"+code), "go", "run", "."))
}

func (u *user) hasASmallProgram(t *testing.T) {
	const most, mostLinked = 66, 26
	dir := u.program(`package main

import (
	_ "modernc.org/sqlite"

	_ "github.com/bluecone-go/bluecone/bus"
	_ "github.com/bluecone-go/bluecone/migrations"
	_ "github.com/bluecone-go/bluecone/outbox"
)

func main() {}
`)
	modules := strings.Fields(u.run(dir, "go", "list", "-m", "-f", "{{if not .Main}}{{.Path}}{{end}}", "all"))
	require.LessOrEqual(t, len(modules), most, modules)
	linked := strings.Fields(u.run(dir, "go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}{{end}}{{end}}", "."))
	slices.Sort(linked)
	require.LessOrEqual(t, len(slices.Compact(linked)), mostLinked, linked)
}

// Every module of this tree is in the workspace, and each that another one requires has the version of the others.
func TestModulesAgreeOnTheirVersion(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(root, "go.work"))
	require.NoError(t, err)
	work, err := modfile.ParseWork("go.work", text, nil)
	require.NoError(t, err)
	var used []string
	for _, u := range work.Use {
		used = append(used, filepath.Clean(u.Path))
	}
	var found []string
	require.NoError(t, filepath.WalkDir(root, func(at string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "go.mod" {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(at))
		require.NoError(t, err)
		if dir == "tools" || dir == "ledger/tools" { // stand outside: -modfile is not allowed in a workspace
			return nil
		}
		found = append(found, dir)
		content, err := os.ReadFile(at)
		require.NoError(t, err)
		file, err := modfile.Parse(at, content, nil)
		require.NoError(t, err)
		require.Empty(t, file.Replace, at)
		for _, r := range file.Require {
			if strings.HasPrefix(r.Mod.Path+"/", path+"/") {
				require.Equal(t, version(t), r.Mod.Version, "%s requires %s", at, r.Mod.Path)
			}
		}
		return nil
	}))
	require.ElementsMatch(t, found, used)
	for _, r := range work.Replace {
		require.Equal(t, version(t), r.Old.Version, r.Old.Path)
	}
}
