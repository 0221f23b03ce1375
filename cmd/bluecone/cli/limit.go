package cli

// maxInput is the most that is read from standard input. docs/security.md says why.
const maxInput = 64 << 20
