// Package store holds statements on the library's tables, one function each. Callers say what they want to know; the
// function names the index that answers.
package store
