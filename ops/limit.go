package ops

// Every limit of this package. docs/security.md says why each of them is what it is.
const (
	// maxDepth is how deep arrays and objects may be nested in a document in which something may have to be hidden. Deeper
	// ones are hidden as a whole.
	maxDepth = 100
)
