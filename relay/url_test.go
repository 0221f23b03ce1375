package relay_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/bluecone-go/bluecone/relay"
)

func TestAURLSaysWhatIsWrongWithItAndNoPassword(t *testing.T) {
	t.Parallel()
	const form = "nats://host:port/STREAM"
	u, err := relay.ParseURL("nats://me:secret@h:1/S?create=false", form, "create")
	require.NoError(t, err)
	may, err := relay.MayCreate(u)
	require.NoError(t, err)
	require.False(t, may)
	for raw, want := range map[string]string{
		"nats://me:sec%ret@h:1/S":                  "cannot be read as a URL",
		"kafka://me:secret@h:1/S":                  `its scheme is "kafka"`,
		"nats:///S":                                "names no host",
		"nats://me:secret@h:1/S#x":                 "behind #",
		"nats://me:secret@h:1/S?crate=false":       `the option "crate", which is unknown: there are create`,
		"nats://me:secret@h:1/S?create=1&create=0": `"create" twice`,
		"nats://me:secret@h:1/S?create=%zz":        "cannot be read",
		"":                                         `its scheme is ""`,
	} {
		_, err := relay.ParseURL(raw, form, "create")
		require.ErrorIs(t, err, relay.ErrURL)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "sec")
	}
	u, err = relay.ParseURL("nats://h:1/S?create=perhaps", form, "create")
	require.NoError(t, err)
	_, err = relay.MayCreate(u)
	require.ErrorIs(t, err, relay.ErrURL)
}
