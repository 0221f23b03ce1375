package main

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/needs"
	"github.com/bluecone-go/bluecone/internal/testbroker"
)

// docs/guides/brokers.md begins with commands for two services, and others that buy something. They do what the page says.
func TestTheGuideToBrokersRuns(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		needs.Unavailable(t, "curl", "apt-get install curl", err)
	}
	from := brokerURL(t, "nats", testbroker.Start(t, "nats"))
	page, err := os.ReadFile("../../docs/guides/brokers.md")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?ms)^```sh\n(.*?)^```").FindAllStringSubmatch(string(page), -1)
	require.Len(t, blocks, 2)

	places := []string{"sqlite:///tmp/", "sqlite://" + t.TempDir() + "/", "nats://127.0.0.1:4222/ORDERS", from}
	for line := range strings.Lines(blocks[0][1]) {
		words := strings.Fields(strings.NewReplacer(places...).Replace(line))
		require.Equal(t, []string{"go", "run"}, words[:2])
		program, args, port := strings.TrimPrefix(words[2], "./demo/"), words[3:], "localhost:8080"
		if program != "bluecone" {
			args, port = append([]string{program}, args...), "localhost:8090"
		}
		s := startServer(t, nil, append(args, "--addr", "127.0.0.1:0")...)
		places = append(places, port, strings.TrimPrefix(s.base, "http://"))
	}
	// What the page says that a command answers comes in a moment.
	answered := regexp.MustCompile(`(?m)^(curl .*?) +# (\{.*?\}).*$`)
	script := strings.NewReplacer(places...).Replace(blocks[1][1])
	require.Len(t, answered.FindAllString(script, -1), 2)
	script = answered.ReplaceAllString(script, `until test "$$($1)" = '$2'; do sleep 0.1; done`)
	ctx, cancel := context.WithTimeout(t.Context(), patient)
	defer cancel()
	out, err := exec.CommandContext(ctx, "sh", "-euc", script).CombinedOutput()
	require.NoError(t, err, "%s: %s", script, out)
}
