package arch_test

import (
	"fmt"
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

// docs/guarantees.md names tests in every section: the eight promises, and what comes behind them. Each of them exists, also
// those that a sentence names.
func TestEveryPromiseHasItsTest(t *testing.T) {
	t.Parallel()
	promises := strings.Count(read(t, "README.md"), "\n1. ") // the list begins once
	require.Equal(t, 1, promises)
	tests := testNames(t)
	head, sections := sectionsOf(read(t, "docs/guarantees.md"))
	named := regexp.MustCompile("`(Test\\w+)`")
	for _, m := range named.FindAllStringSubmatch(head, -1) {
		require.True(t, tests[m[1]], "%s does not exist", m[1])
	}
	for i, s := range sections {
		if i < 8 {
			require.True(t, strings.HasPrefix(s, fmt.Sprintf("%d. ", i+1)), "promise %d is missing", i+1)
		}
		title, text, _ := strings.Cut(s, "\n")
		_, proof, found := strings.Cut(text, "\nProof: ")
		if title == "Not promised" {
			proof = text
		} else {
			require.True(t, found, "%s has no proof", title)
		}
		require.Regexp(t, named, proof, "%s names no test", title)
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			require.True(t, tests[m[1]], "%s names %s, which does not exist", title, m[1])
		}
	}
	require.GreaterOrEqual(t, len(sections), 15, "the sections were found")
}

// sectionsOf are the parts of a page that begin with a heading of the second level, without its marks, and what is above them.
func sectionsOf(page string) (head string, sections []string) {
	parts := strings.Split(page, "\n## ")
	return parts[0], parts[1:]
}

// testNames are the names of all tests of the repository.
func testNames(t *testing.T) map[string]bool {
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
	return tests
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
