package chaos

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
)

func my(sequence byte, payload string) []byte {
	return append([]byte{byte(len(payload)), byte(len(payload) >> 8), byte(len(payload) >> 16), sequence}, payload...)
}

func pg(kind string, body string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte(kind), uint32(len(body)+4)), body...)
}

// What arrives byte by byte leaves whole and unchanged, and a COMMIT is seen in every spelling.
func TestPacketsAreFramed(t *testing.T) {
	t.Parallel()
	startup := pg("", "\x00\x03\x00\x00user\x00me\x00\x00")
	for name, c := range map[string]struct {
		framer  framer
		packets [][]byte
		commits []int
	}{
		"MySQL": {mysql{}, [][]byte{
			my(1, "login"), my(0, "\x03BEGIN"), my(0, "\x03INSERT INTO t VALUES ('COMMIT')"), my(0, "\x03COMMIT"), my(0, "\x03 commit ;"),
			my(0, "\x16COMMIT"),
			my(1, "\x03COMMIT"), my(0, ""), my(0, "\x03"+strings.Repeat("x", 70_000)),
		}, []int{3, 4}},
		"PostgreSQL": {newPostgres(), [][]byte{
			startup, pg("Q", "begin\x00"), pg("Q", "select 'commit'\x00"), pg("Q", "commit\x00"), pg("Q", "COMMIT;\x00"), pg("S", ""),
			pg("P", "s1\x00commit\x00\x00\x00"), pg("B", "p1\x00s1\x00\x00\x00\x00\x00\x00\x00"), pg("E", "p1\x00\x00\x00\x00\x00"),
			pg("P", "\x00select 1\x00\x00\x00"), pg("B", "\x00\x00\x00\x00\x00\x00\x00\x00"), pg("E", "\x00\x00\x00\x00\x00"),
			pg("Q", strings.Repeat("x", 70_000)+"\x00"),
		}, []int{3, 4, 8}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := bufio.NewReader(iotest.OneByteReader(bytes.NewReader(bytes.Join(c.packets, nil))))
			var commits []int
			for i, want := range c.packets {
				packet, commit, refusal, err := c.framer.next(r)
				require.NoError(t, err)
				require.Nil(t, refusal)
				require.Equal(t, want, packet)
				if commit {
					commits = append(commits, i)
				}
			}
			require.Equal(t, c.commits, commits)
			_, _, _, err := c.framer.next(r)
			require.ErrorIs(t, err, io.EOF)
		})
	}
}

func TestTLSIsRefused(t *testing.T) {
	t.Parallel()
	f := newPostgres()
	_, _, refusal, err := f.next(bufio.NewReader(bytes.NewReader(pg("", "\x04\xd2\x16\x2f"))))
	require.NoError(t, err)
	require.Equal(t, []byte("N"), refusal)
	_, _, _, err = f.next(bufio.NewReader(strings.NewReader("GET / HTTP/1.1")))
	require.Error(t, err)
}

func FuzzFramers(f *testing.F) {
	f.Add([]byte("\x01\x00\x00\x00\x03"))
	f.Add(pg("", "\x00\x03\x00\x00"))
	f.Fuzz(func(t *testing.T, stream []byte) {
		for _, fr := range []framer{mysql{}, newPostgres()} {
			r, passed := bufio.NewReader(bytes.NewReader(stream)), 0
			for {
				packet, _, refusal, err := fr.next(r)
				if err != nil {
					break
				}
				if refusal == nil && !bytes.Equal(packet, stream[passed:passed+len(packet)]) {
					t.Fatal("a packet was changed")
				}
				passed += len(packet)
				if refusal != nil {
					passed += 8
				}
			}
		}
	})
}
