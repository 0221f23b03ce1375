package settle

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// What comes while a call is under way is one call, and each caller returns when its ids have been worked on. Waiting
// is for a channel: the work asks the database, and the simulated clock must go on meanwhile.
func TestWhatComesMeanwhileIsDoneTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := NewCoalescer()
		var mu sync.Mutex
		var turns [][]string
		goOn := make(chan struct{})
		var all sync.WaitGroup
		all.Go(func() {
			c.Do([]string{"first"}, func(ids []string) {
				turns = append(turns, ids)
				<-goOn
			})
		})
		synctest.Wait()
		const callers = 20
		for i := range callers {
			all.Go(func() {
				id := fmt.Sprintf("%02d", i)
				c.Do([]string{id, "all"}, func(ids []string) {
					mu.Lock()
					defer mu.Unlock()
					turns = append(turns, slices.Clone(ids))
				})
				mu.Lock()
				defer mu.Unlock()
				require.True(t, slices.ContainsFunc(turns, func(ids []string) bool { return slices.Contains(ids, id) }))
			})
		}
		synctest.Wait()
		close(goOn)
		all.Wait()
		require.Len(t, turns, 2)
		require.Equal(t, []string{"first"}, turns[0])
		require.Len(t, turns[1], callers+1, "each once")
	})
}
