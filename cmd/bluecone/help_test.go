package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write testdata/help.txt")

// commands lists every command, parents first.
func commands(cmd *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{cmd}
	for _, sub := range cmd.Commands() {
		all = append(all, commands(sub)...)
	}
	return all
}

// The help of every command is what testdata/help.txt says (go test -run HelpText -update .), needs
// no database, and names the exit statuses.
func TestHelpText(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for _, cmd := range commands(command(os.Getenv)) {
		args := append(strings.Fields(cmd.CommandPath())[1:], "--help")
		r := program(t, "bluecone", nil, args...)
		require.Zero(t, r.code, r.errors)
		require.Empty(t, r.errors)
		require.Contains(t, r.out, "Exit status: 0 done;")
		if cmd.HasParent() {
			require.NotContains(t, r.out, "\n\n\n")
			text, _, _ := strings.Cut(r.out, "\nGlobal Flags:") // the same everywhere
			r.out = text
		}
		fmt.Fprintf(&b, "$ bluecone %s\n%s\n", strings.Join(args, " "), strings.TrimSpace(r.out)+"\n")
	}
	const file = "testdata/help.txt"
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o600))
	}
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	want, got := strings.Split(string(text), "\n$ "), strings.Split(b.String(), "\n$ ")
	for i := range min(len(want), len(got)) {
		require.Equal(t, want[i], got[i])
	}
	require.Len(t, got, len(want))
}

// Every command that changes something has --dry-run, --reason and --actor, and every command an example.
func TestEveryWriteCanBeTriedAndIsExplained(t *testing.T) {
	t.Parallel()
	writes := map[string]bool{}
	for _, cmd := range commands(command(os.Getenv)) {
		if cmd.HasSubCommands() || !cmd.HasParent() {
			continue
		}
		require.NotEmpty(t, cmd.Example, cmd.CommandPath())
		if cmd.Flags().Lookup("dry-run") != nil {
			writes[strings.TrimPrefix(cmd.CommandPath(), "bluecone ")] = true
			if cmd.CommandPath() == "bluecone migrate up" {
				continue // before it there is no audit log
			}
			require.NotNil(t, cmd.Flags().Lookup("reason"), cmd.CommandPath())
			require.NotNil(t, cmd.Flags().Lookup("actor"), cmd.CommandPath())
		}
	}
	require.Len(t, writes, 16, "%v", writes)
}
