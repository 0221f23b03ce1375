package console

import (
	"bytes"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// uploads is how many refused uploads the test sends, each larger than what a parser keeps in memory.
const (
	uploads     = 100
	uploadBytes = 48 << 20
)

// zeros is a file of that many bytes.
type zeros struct{ left int }

func (z *zeros) Read(p []byte) (int, error) {
	if z.left == 0 {
		return 0, io.EOF
	}
	n := min(len(p), z.left)
	clear(p[:n])
	z.left -= n
	return n, nil
}

// upload is a form with a file in it.
func upload(t *testing.T) (body io.Reader, contentType string) {
	t.Helper()
	var head bytes.Buffer
	w := multipart.NewWriter(&head)
	_, err := w.CreateFormFile("lang", "a")
	require.NoError(t, err)
	return io.MultiReader(&head, &zeros{uploadBytes}, strings.NewReader("\r\n--"+w.Boundary()+"--\r\n")), w.FormDataContentType()
}

// Who may not upload anything leaves nothing on the disk: a reader without the permission, a page of another
// site, an address that does not exist, and an operator who sends a form of the wrong kind.
func TestRefusedUploadsLeaveNoFile(t *testing.T) { // not parallel: it chooses the folder of temporary files
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	reader := httptest.NewServer(consoleOf(&fake{text: "x"}, Principal{Name: "rita", May: ReadOnly()}))
	defer reader.Close()
	admin := httptest.NewServer(consoleOf(&fake{text: "x"}, everything()))
	defer admin.Close()
	client := reader.Client()
	defer client.CloseIdleConnections()
	attempts := []struct {
		url, site string
		codes     []int
	}{
		{reader.URL + "/retry", "same-origin", []int{http.StatusForbidden}},
		{admin.URL + "/retry", "cross-site", []int{http.StatusForbidden}},
		{admin.URL + "/nothing", "same-origin", []int{http.StatusNotFound}},
		{admin.URL + "/retry", "same-origin", []int{http.StatusUnsupportedMediaType}},
		{admin.URL + "/api/v1/retry", "same-origin", []int{http.StatusUnsupportedMediaType}},
	}
	for i := range uploads {
		a := attempts[i%len(attempts)]
		body, contentType := upload(t)
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, a.url, body)
		require.NoError(t, err)
		r.Header.Set("Content-Type", contentType)
		r.Header.Set("Sec-Fetch-Site", a.site)
		// A server that hangs up while the body is being sent has refused it too.
		if answer, err := client.Do(r); err == nil {
			require.Contains(t, a.codes, answer.StatusCode, a.url)
			require.NoError(t, answer.Body.Close())
		}
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, entries, "after %d refused uploads", i+1)
	}
}

// Nobody holds a request open for ever by sending its body slowly.
func TestASlowBodyIsNotWaitedForLong(t *testing.T) {
	t.Parallel()
	c := consoleOf(&fake{text: "x"}, everything())
	c.bodyTime = 200 * time.Millisecond
	server := httptest.NewServer(c)
	defer server.Close()
	slow, drip := io.Pipe()
	defer drip.Close()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/retry", slow)
	require.NoError(t, err)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	go func() { _, _ = drip.Write([]byte("reason=")) }() // and no more
	answer, err := server.Client().Do(r)
	require.NoError(t, err)
	defer answer.Body.Close()
	require.Equal(t, http.StatusRequestTimeout, answer.StatusCode)
}
