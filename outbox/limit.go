package outbox

// Limits of this package that docs/security.md says the reasons of.
const (
	// defaultInHand is how many bytes of payloads a process has in hand, unless [PublisherConfig.MaxInHand] says otherwise.
	defaultInHand = 16 << 20
)
