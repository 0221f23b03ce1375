package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/bus"
)

const guide = "../../docs/cli.md"

// varying is what differs from run to run, and what the guide says instead, of the same length.
var varying = []struct {
	pattern *regexp.Regexp
	instead string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d`), "2026-11-21 03:07:00"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[.\d]*Z`), "2026-11-21T03:07:00.123456Z"},
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}`), "0193a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"},
	{regexp.MustCompile(`\b\d+(\.\d+)?(ms|µs|s| s)\b`), "2s"},
	{regexp.MustCompile(`\b3\.\d+\.\d+\b`), "3.53.4"},
	{regexp.MustCompile(`#[0-9a-f]{8}\b`), "#1a2b3c4d"}, // the run of an instance
}

func steady(text string) string {
	for _, v := range varying {
		text = v.pattern.ReplaceAllStringFunc(text, func(found string) string {
			return v.instead + strings.Repeat(" ", max(len(found)-len(v.instead), 0))
		})
	}
	return text
}

// squeezed is text without what only aligns it.
func squeezed(text string) string {
	text = regexp.MustCompile(` +`).ReplaceAllString(text, " ")
	return regexp.MustCompile(` ([.,:;)\n])`).ReplaceAllString(text, "$1")
}

var blocks = regexp.MustCompile("(?s)```console\n(.*?)```")

// Every example of the guide runs, in its order, and prints what the guide says it does
// (go test -run GuideRuns -update . writes what it prints).
func TestGuideRuns(t *testing.T) {
	t.Parallel()
	d := newDeployment(t, "sqlite")
	for n := range 4 {
		d.save(paid{OrderID: fmt.Sprint(1001 + n), Cents: 500})
	}
	d.work(bus.Permanent(errors.New("POST /grant: 503 Service Unavailable")))
	text, err := os.ReadFile(guide)
	require.NoError(t, err)
	found := 0
	now := blocks.ReplaceAllStringFunc(string(text), func(block string) string {
		var b strings.Builder
		for line := range strings.Lines(blocks.FindStringSubmatch(block)[1]) {
			if command, ok := strings.CutPrefix(line, "$ "); ok {
				found++
				fmt.Fprintf(&b, "%s%s", line, steady(d.example(strings.TrimSpace(command))))
			}
		}
		return "```console\n" + b.String() + "```"
	})
	require.Greater(t, found, 20)
	if flag.Lookup("update").Value.String() == "true" {
		require.NoError(t, os.WriteFile(guide, []byte(now), 0o600))
		return
	}
	want, got := strings.Split(squeezed(string(text)), "\n"), strings.Split(squeezed(now), "\n")
	slices.Sort(want) // consumers work side by side: what happened in one moment is in any order
	slices.Sort(got)
	require.Equal(t, want, got)
}

// progressLine is what a slow machine adds.
var progressLine = regexp.MustCompile(`(?m)^[\w ]+: \d+ (of \S+|so far)\n`)

// example runs a line of the guide as a shell would, and answers all that it prints.
func (d *deployment) example(line string) string {
	d.t.Helper()
	var words []string
	for _, m := range regexp.MustCompile(`'([^']*)'|"([^"]*)"|(\S+)`).FindAllStringSubmatch(line, -1) {
		words = append(words, m[1]+m[2]+m[3])
	}
	r := program(d.t, words[0], []string{"BLUECONE_DSN=" + d.dsn, "SHOP_DSN=" + d.dsn, "SUDO_USER=grace"}, words[1:]...)
	require.Zero(d.t, r.code, "%s: %s", line, r.errors)
	return r.out + progressLine.ReplaceAllString(r.errors, "")
}

// The guide names every command, and no other.
func TestGuideNamesTheCommands(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(guide)
	require.NoError(t, err)
	root := command(os.Getenv)
	for _, cmd := range commands(root) {
		if cmd.HasParent() && !cmd.HasSubCommands() {
			named := strings.Contains(strings.ReplaceAll(string(text), "shop ops", "bluecone"), cmd.CommandPath())
			require.True(t, named, "the guide does not name %s", cmd.CommandPath())
		}
	}
	root.InitDefaultCompletionCmd()
	for _, m := range regexp.MustCompile("(?:`|\\$ |\\()bluecone ([a-z]+)(?: ([a-z]+))?").FindAllStringSubmatch(string(text), -1) {
		cmd, _, err := root.Find([]string{m[1]})
		require.NoError(t, err)
		require.NotEqual(t, root, cmd, m[0])
		if subs := cmd.Commands(); len(subs) > 0 {
			require.True(t, subcommand(cmd, m[2]), m[0])
		}
	}
	for code, words := range map[int]string{
		0: "done", 1: "it failed", 2: "wrong usage", 3: "there is no such", 4: "cannot be reached",
		130: "interrupted",
	} {
		require.Regexp(t, fmt.Sprintf(`(?m)^\| %d \| .*%s`, code, words), string(text))
	}
}

func subcommand(cmd *cobra.Command, name string) bool {
	for _, sub := range cmd.Commands() {
		if sub.Name() == name {
			return true
		}
	}
	return false
}
