//go:build !race

package simulation

// defaultSeeds is what two cores live in half a minute.
const defaultSeeds = 500
