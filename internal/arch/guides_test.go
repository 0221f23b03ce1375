package arch_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var codeBlock = regexp.MustCompile("(?ms)^```(\\w*)[^\n]*\n(.*?)^```")

// Each guide is short, and all its code stands in the test file of its name, or in that of the index, line by line: the tests of
// docs/guides run it. A guide to an adapter has the examples of that adapter.
func TestCodeOfTheGuidesIsRun(t *testing.T) {
	t.Parallel()
	const longest = 900
	pages, err := filepath.Glob(filepath.Join(root, "docs", "guides", "*.md"))
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(pages), 8)
	index, shared := read(t, "docs/guides/README.md"), trimmedLines(read(t, "docs/guides/shop_test.go"))
	for _, path := range pages {
		name := filepath.Base(path)
		page := read(t, "docs/guides/"+name)
		require.LessOrEqual(t, len(strings.Fields(page)), longest, name)
		file := "docs/guides/" + strings.ReplaceAll(strings.TrimSuffix(name, ".md"), "-", "_") + "_test.go"
		if adapter := "adapter/" + strings.TrimSuffix(name, ".md") + "tx/example_test.go"; exists(adapter) {
			file = adapter
		}
		switch name {
		case "README.md":
			file = "docs/guides/shop_test.go"
		case "sqlc-and-squirrel.md": // they need no adapter
			file = "adapter/examples/example_test.go"
		case "brokers.md": // its code needs a module that the library must not need
			file = "relay/nats/guide_test.go"
		}
		if name != "README.md" {
			require.Contains(t, index, "("+name+")", "the index lists every guide")
		}
		if name == "ledger.md" {
			file = "ledger/guide_test.go"
		}
		code := trimmedLines(read(t, file)) + shared
		blocks := codeBlock.FindAllStringSubmatch(page, -1)
		require.NotEmpty(t, blocks, "%s has no code", name)
		for _, b := range blocks {
			if name == "brokers.md" && b[1] == "sh" {
				continue // demo/bluecone/guide_test.go runs it
			}
			if name == "ledger.md" && b[1] == "sh" {
				continue // ledger/guide_test.go runs it
			}
			require.Equal(t, "go", b[1], "%s: code in another language is run by nobody", name)
			require.True(t, strings.Contains(code, trimmedLines(b[2])), "%s: %s does not have this:\n%s", name, file, b[2])
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(filepath.Join(root, path))
	return err == nil
}

// trimmedLines is a text without indentation, with a line break before and after each line.
func trimmedLines(text string) string {
	var b strings.Builder
	b.WriteByte('\n')
	for line := range strings.Lines(text) {
		b.WriteString(strings.TrimSpace(line) + "\n")
	}
	return b.String()
}

// The checklist for production names every check of the doctor, by the name that its report has, and no other.
func TestProductionChecklistNamesEveryCheck(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(root, "doctor", "*.go"))
	require.NoError(t, err)
	var checks []string
	for _, path := range files {
		if !strings.HasSuffix(path, "_test.go") {
			for _, m := range regexp.MustCompile(`\{name: "([^"]+)"`).FindAllStringSubmatch(read(t, "doctor/"+filepath.Base(path)), -1) {
				checks = append(checks, m[1])
			}
		}
	}
	require.Greater(t, len(checks), 20, "the test looks at nothing")
	_, table, found := strings.Cut(read(t, "docs/guides/production.md"), "| check | it wants |\n")
	require.True(t, found)
	table, _, _ = strings.Cut(table, "\n\n")
	var named []string
	for line := range strings.Lines(table) {
		cell := strings.Split(line, "|")[1]
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cell, -1) {
			named = append(named, m[1])
		}
	}
	slices.Sort(checks)
	slices.Sort(named)
	require.Equal(t, checks, named)
}
