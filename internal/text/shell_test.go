package text_test

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/internal/hostile"
	"github.com/bluecone-go/bluecone/internal/text"
)

// Whatever a value is, a shell takes it for one word that is no option, and does nothing else.
func TestAShellTakesAnyValueForOneWord(t *testing.T) {
	t.Parallel()
	for _, s := range []string{"0193d5e2-7a3c", "WalletConsumer@replay", "order:7/paid", "user@example.org"} {
		require.Equal(t, s, text.Shell(s))
	}
	values := []string{
		"$(touch x)", "`touch x`", "a;touch x", "a\ntouch x", "'", "'; touch x; '", "a\\", "~", "!!", "*", "=ls",
		"--dsn=mysql://evil/x", "-x", "a b", "$HOME", "a\u202eb",
	}
	for _, v := range hostile.Values() {
		values = append(values, v.Text)
	}
	for _, v := range values {
		quoted := text.Shell(v)
		require.NotContains(t, quoted, "\n")
		require.NotContains(t, quoted, "\x1b")
		cmd := exec.CommandContext(t.Context(), "sh", "-c", "printf '%s\\n' "+quoted+" | wc -l; set -- "+quoted+"; echo $#; case \"$1\" in "+
			"-*) echo option;; esac; ls -A")
		cmd.Dir = t.TempDir()
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%q: %s", v, out)
		require.Equal(t, "1\n1\n", string(out), "%q became %s", v, quoted)
	}
}
