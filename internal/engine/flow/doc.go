// Package flow decides how much the engine does at a time, and how fast: pure state machines that take the time as an argument.
// They run no SQL, start no goroutine and hold no lock: the owner calls them under its own mutex.
package flow
