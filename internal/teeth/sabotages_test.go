package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every sabotage still finds the lines that it breaks, and its code compiles.
func TestSabotagesBuild(t *testing.T) {
	t.Chdir("../..")
	names := make(map[string]bool)
	for _, s := range sabotages() {
		assert.False(t, names[s.name], s.name)
		names[s.name] = true
	}
	var out strings.Builder
	require.NoError(t, build(&out, sabotages()), &out)
}

// A sabotage that does not build is told from one that does.
func TestBuildTellsWhatDoesNot(t *testing.T) {
	t.Chdir("../..")
	const file = "internal/teeth/table.go"
	compiler, err := newCompiler([]sabotage{{file: file}})
	require.NoError(t, err)
	const line = "len(cells) == columns {"
	for name, c := range map[string]struct{ old, new, says string }{
		"other lines":   {line + " ", line, file + " has the lines to replace 0 times, not once"},
		"no such thing": {line, "len(cells) == tail {", "undefined: tail"},
		"no code":       {line, "len(cells) = = {", "expected operand"},
	} {
		assert.ErrorContains(t, compiler.check(sabotage{file: file, old: c.old, new: c.new}), c.says, name)
	}
}
