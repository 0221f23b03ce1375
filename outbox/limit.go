package outbox

// Limits of this package that docs/security.md says the reasons of.
const (
	// defaultInFlightBytes is how many bytes of payloads a process has in flight, unless [PublisherConfig.MaxInFlightBytes] says otherwise.
	defaultInFlightBytes = 16 << 20
	// defaultPayload is the largest payload that Save takes, in bytes, unless [Config.MaxPayload] says otherwise.
	defaultPayload = 256 << 10
	// maxPayload is the most that Config.MaxPayload may say.
	maxPayload = 4 << 20
	// maxMetadata is the most metadata that Save takes, in bytes of JSON.
	maxMetadata = 16 << 10
	// maxDepth is how deep arrays and objects of a payload may be nested.
	maxDepth = 30
	// mostUnseen is for how many calls of Save a process looks at a time whether their transactions have committed.
	mostUnseen = 999
	// maxTraceID is the longest trace id that is kept, in bytes.
	maxTraceID = 64
)
