package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// Every sabotage still finds the lines that it breaks.
func TestSabotagesFit(t *testing.T) {
	t.Chdir("../..")
	names := make(map[string]bool)
	for _, s := range sabotages() {
		assert.False(t, names[s.name], s.name)
		names[s.name] = true
		_, err := s.overlay(t.TempDir())
		assert.NoError(t, err, s.name)
	}
}
