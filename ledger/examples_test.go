package ledger_test

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/needs"
	"github.com/bluecone-go/bluecone/internal/testdb"
	"github.com/bluecone-go/bluecone/ledger"
)

// Producers and consumers without our code: they publish, repeat themselves, and consume each event once, in order.
func TestProgramsInOtherLanguages(t *testing.T) {
	t.Parallel()
	for name, program := range map[string][]string{
		"python3": {"python3", "examples/ledger.py"},
		"java":    {"java", "examples/java/Ledger.java"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(name); err != nil {
				needs.Unavailable(t, name, "apt-get install "+map[string]string{"java": "default-jdk-headless", "python3": "python3"}[name], err)
			}
			i := serve(t, testdb.Open(t, "sqlite"), ledger.Config{})
			run := func(token string, args ...string) string {
				cmd := exec.CommandContext(t.Context(), program[0], append(program[1:], args...)...)
				cmd.Env = append(os.Environ(), "LEDGER="+i.url, "TOKEN="+token)
				var stderr bytes.Buffer
				cmd.Stderr = &stderr
				out, err := cmd.Output()
				require.NoError(t, err, "%s", stderr.String())
				return strings.TrimSpace(string(out))
			}
			first := run("shop-token", "publish", "7", "4200")
			require.Equal(t, first, run("shop-token", "publish", "7", "4200"), "the same event")
			run("shop-token", "publish", "8", "900")
			require.ElementsMatch(t, []string{"7 42", "8 9"}, strings.Split(run("points-token", "consume", "2"), "\n"))
			require.JSONEq(t, `{"pending":0,"oldestAge":"0s","dead":0}`,
				i.call("points-token", "QueryLag", `{"consumer":"PointsConsumer"}`).text)
		})
	}
}
