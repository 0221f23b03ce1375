//go:build !race

package simulation

// defaultSeeds is what two cores live in a minute.
const defaultSeeds = 1000
