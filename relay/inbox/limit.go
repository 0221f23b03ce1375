package inbox

// Limits of this package. What exceeds one lands as an undecodable event.
const (
	// maxHeaders is how many headers and attributes a message may have.
	maxHeaders = 100
	// maxHeaderBytes is how long all their names and values may be together.
	maxHeaderBytes = 12 << 10
	// keptHeaderBytes is how much of the headers of an undecodable message is kept, and keptBody how much of its body.
	keptHeaderBytes = 12 << 10
	keptBody        = 256 << 10
	// mostPerCommit is how many messages one transaction lands.
	mostPerCommit = 500
	// mostBytesPerCommit is how long their bodies may be together, unless there is one: databases limit the length of a statement.
	mostBytesPerCommit = 4 << 20
	// defaultOpen is how many events may be open before fetching pauses, unless [Config.Open] says otherwise.
	defaultOpen = 10_000
)
