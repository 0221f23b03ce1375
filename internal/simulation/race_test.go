//go:build race

package simulation

// defaultSeeds is small under the race detector, which makes SQLite in Go twenty times as slow.
const defaultSeeds = 30
