package main

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Scripts for the shells are made without a database, and bash can read its own.
func TestCompletionScripts(t *testing.T) {
	t.Parallel()
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		r := program(t, "bluecone", nil, "completion", shell)
		require.Zero(t, r.code, r.errors)
		require.Contains(t, r.out, "__complete")
		if shell == "bash" {
			cmd := exec.CommandContext(t.Context(), "bash", "-n")
			cmd.Stdin = strings.NewReader(r.out)
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, string(out))
		}
	}
}

// Consumers, event types and jobs are completed from the database, states from what there is, and a
// database that cannot be reached completes nothing and says nothing.
func TestCompletionAsksTheDatabase(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d *deployment) {
		d.work(nil)
		for line, want := range map[string]string{
			"consumers pause P":         "Points",
			"consumers resume ":         "Points Wallet",
			"events list --consumer W":  "Wallet",
			"events list --type ":       "order.paid",
			"events list --status ":     "NEW SCHEDULED DISPATCHING SENT FAILED DEAD",
			"events retry x --consumer": "",
			"status --output ":          "table json csv",
			"migrate print --dialect ":  "mysql postgres sqlite",
			"consumers pause Points ":   "",
			"trace ":                    "",
		} {
			out := d.ok(append([]string{"__complete"}, strings.Split(line, " ")...)...)
			all := lines(out)
			words, directive := all[:len(all)-1], all[len(all)-1]
			if strings.HasSuffix(line, "--consumer") {
				continue // the flag itself is completed
			}
			require.Equal(t, ":4", directive, "no names of files: %s", line)
			require.Equal(t, want, strings.Join(words, " "), line)
		}
		r := d.shop("__complete", "x")
		require.NotContains(t, r.errors, "panic")
	})
	r := program(t, "bluecone", []string{"BLUECONE_DSN=mysql://u:tiger@127.0.0.1:1/x"}, "__complete", "consumers", "pause", "")
	require.Zero(t, r.code)
	require.Equal(t, ":4\n", r.out)
	require.NotContains(t, r.errors, "tiger")
}
