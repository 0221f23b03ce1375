package text

// MaxError is the longest error text that is stored, in runes. docs/security.md says why.
const MaxError = 2000
