package arch_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	require.NoError(t, err)
	return string(text)
}

// The quick start of the README compiles and prints what the README says.
func TestReadmeQuickStartRuns(t *testing.T) {
	t.Parallel()
	readme := read(t, "README.md")
	_, code, found := strings.Cut(readme, "```go\n")
	require.True(t, found)
	code, _, _ = strings.Cut(code, "```")
	body := code[strings.Index(code, "type OrderPaid"):strings.Index(code, "func must")]
	require.LessOrEqual(t, strings.Count(body, "\n"), 32, "it fits a screen")
	file := filepath.Join(t.TempDir(), "main.go")
	require.NoError(t, os.WriteFile(file, []byte(code), 0o600))
	cmd := exec.CommandContext(t.Context(), "go", "run", file)
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	want := regexp.MustCompile("It prints `([^`]+)`").FindStringSubmatch(readme)
	require.NotNil(t, want)
	require.Equal(t, want[1]+"\n", string(out))
}

// docs/guarantees.md names a test for every promise, and each of them exists.
func TestEveryPromiseHasItsTest(t *testing.T) {
	t.Parallel()
	text := read(t, "docs/guarantees.md")
	promises := strings.Count(read(t, "README.md"), "\n1. ") // the list begins once
	require.Equal(t, 1, promises)
	tests := make(map[string]bool)
	for _, path := range goFiles(t) {
		if strings.HasSuffix(path, "_test.go") {
			code, err := os.ReadFile(path)
			require.NoError(t, err)
			for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(string(code), -1) {
				tests[m[1]] = true
			}
		}
	}
	for n := 1; n <= 8; n++ {
		section := regexp.MustCompile(`(?ms)^## ` + string(rune('0'+n)) + `\. .*?(?:\n## |\z)`).FindString(text)
		require.NotEmpty(t, section, "promise %d", n)
		named := regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(section, -1)
		require.NotEmpty(t, named, "promise %d names no test", n)
		for _, m := range named {
			require.True(t, tests[m[1]], "promise %d names %s, which does not exist", n, m[1])
		}
	}
}

var (
	link   = regexp.MustCompile(`\]\(([^)#:]+)(?:#[^)]*)?\)`)
	fenced = regexp.MustCompile("(?s)```.*?```")
)

// Links between the documents lead somewhere.
func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	var pages []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		require.NoError(t, err)
		require.NotEmpty(t, found, pattern)
		pages = append(pages, found...)
	}
	for _, path := range pages {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, m := range link.FindAllStringSubmatch(fenced.ReplaceAllString(string(text), ""), -1) {
			_, err := os.Stat(filepath.Join(filepath.Dir(path), m[1]))
			require.NoError(t, err, "%s links to %s", path, m[1])
		}
	}
}
