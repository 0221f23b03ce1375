// Package attempts has no code: its tests try to break the sentences of docs/guarantees.md.
//
// # Contract
//
// Every test knows the library by its public API and its tables only, and names the sentence that it tries to break.
package attempts
