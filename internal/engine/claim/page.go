package claim

const (
	backlogPages    = 5   // times the configured size
	mostBacklogPage = 500 // unless that is more
)

// PageSize is how many events a claim takes: in a backlog larger claims cost less for each event, but none is smaller than
// what is configured.
func PageSize(configured int, isBacklog bool) int {
	if !isBacklog {
		return configured
	}
	return max(configured, min(backlogPages*configured, mostBacklogPage))
}

// WorthwhileRoom is how much room there has to be for a claim, where at most so many events fit: while more are due, a
// claim should be a good one.
func WorthwhileRoom(atMost int) int { return atMost/2 + 1 }
