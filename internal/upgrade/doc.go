// Package upgrade holds the test of the upgrade from the release before: a real program of that release fills the tables,
// and goes on beside instances of this one while the tables change.
package upgrade
