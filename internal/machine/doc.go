// Package machine plays random sequences of everything that people and processes do to the engine, on
// real databases: saving, delivering by one instance or another, handlers that fail, processes that
// die, operators, reaper, retention and consistency. There is nothing to import; its tests are the
// package.
//
// # Contract
//
// Commands run one after the other, so a sequence that breaks a promise does so every time, and rapid
// makes it short. Every command is followed by the invariants that hold at any moment, every sequence
// by a drain and all of them. The draws are the same on every run, unless -rapid.seed says otherwise;
// -rapid.checks makes them more.
package machine
