package arch_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	mostSteps    = 25
	mostWayFiles = 8
)

// notCalled are the steps of the way that no other step calls, and how they are reached.
var notCalled = map[string]string{
	"Save":       "the user calls it",
	"AfterQuery": "bun calls it",
	"loop":       "the mailbox wakes it",
	"Done":       "the delivery has it as its function done",
	"Run":        "a channel wakes it",
}

// docs/architecture.md leads along every function that an event passes from Save to SENT: each is called by one before it, and is
// in the file that is named. There are at most 25, and with the statements they are in at most eight files.
func TestTheWayOfAnEvent(t *testing.T) {
	t.Parallel()
	_, way, found := strings.Cut(read(t, "docs/architecture.md"), "## The way of an event\n")
	require.True(t, found)
	way, _, found = strings.Cut(way, "\n\nEvents of other processes")
	require.True(t, found)
	files, steps := 0, 0
	called := make(map[string]bool)
	for line := range strings.Lines(way) {
		link := regexp.MustCompile("\\[`([a-z/]+\\.go)`\\]\\(\\.\\./([a-z/]+\\.go)\\)").FindStringSubmatch(line)
		if link == nil {
			continue
		}
		require.Equal(t, link[1], link[2], "the link leads to the file that it names")
		files++
		functions := functionsOf(t, link[1])
		_, after, _ := strings.Cut(line, link[0])
		isStep := regexp.MustCompile(`^\d+\. `).MatchString(line)
		for _, name := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(after, -1) {
			if strings.HasPrefix(name[1], "Test") {
				continue
			}
			bodies := functions[name[1]]
			require.NotEmpty(t, bodies, "%s is in %s", name[1], link[1])
			if !isStep { // a statement
				continue
			}
			steps++
			require.True(t, called[name[1]] || notCalled[name[1]] != "", "no step before %s calls it: one is missing, or the order is another",
				name[1])
			for _, body := range bodies {
				addCalls(called, body)
			}
		}
	}
	require.LessOrEqual(t, steps, mostSteps)
	require.LessOrEqual(t, files, mostWayFiles)
	require.Contains(t, way, fmt.Sprintf("Follow these %d functions", steps))
}

// functionsOf are the bodies of the functions and methods in a file, by their names without the receivers.
func functionsOf(t *testing.T, path string) map[string][]*ast.BlockStmt {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, filepath.FromSlash(path)), nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	bodies := make(map[string][]*ast.BlockStmt)
	for _, decl := range file.Decls {
		if f, ok := decl.(*ast.FuncDecl); ok {
			bodies[f.Name.Name] = append(bodies[f.Name.Name], f.Body)
		}
	}
	return bodies
}

// addCalls adds the names of what a function calls.
func addCalls(called map[string]bool, body *ast.BlockStmt) {
	ast.Inspect(body, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			switch f := call.Fun.(type) {
			case *ast.Ident:
				called[f.Name] = true
			case *ast.SelectorExpr:
				called[f.Sel.Name] = true
			}
		}
		return true
	})
}
