// Package restart holds the stress test of two instances that save the events of an aggregate in turn
// while they are killed and started again under the same names.
package restart
