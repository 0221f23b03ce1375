package ops

import (
	"encoding/json"
)

// storedTypes are the event types in a row of the registry, none of it if it is not a JSON list of texts.
func storedTypes(column string) []string {
	var read []*string // null is no text
	if json.Unmarshal([]byte(column), &read) != nil {
		return nil
	}
	types := make([]string, 0, len(read))
	for _, t := range read {
		if t == nil {
			return nil
		}
		types = append(types, *t)
	}
	return types
}

// storedCounts are the counts of a run of a job, none of them if they are not a JSON object of whole numbers.
func storedCounts(column string) map[string]int64 {
	var read map[string]*int64
	if json.Unmarshal([]byte(column), &read) != nil {
		return nil
	}
	counts := make(map[string]int64, len(read))
	for name, n := range read {
		if n == nil {
			return nil
		}
		counts[name] = *n
	}
	return counts
}
