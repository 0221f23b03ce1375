package console

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"mime"
	"net/http"
	"path"
	"strings"
)

//go:embed assets
var assetFiles embed.FS

// assets are the files that browsers fetch, under names that contain a hash of the content: they
// may be kept for ever, and a new release has new names.
type assets struct {
	url   map[string]string // file → URL relative to a page
	files map[string][]byte // hashed name → content
}

func loadAssets() assets {
	a := assets{url: make(map[string]string), files: make(map[string][]byte)}
	entries, err := assetFiles.ReadDir("assets")
	if err != nil {
		panic(err) // embedded: it is there or the program does not build
	}
	for _, e := range entries {
		if path.Ext(e.Name()) == ".md" {
			continue
		}
		content, err := assetFiles.ReadFile("assets/" + e.Name())
		if err != nil {
			panic(err)
		}
		sum := sha256.Sum256(content)
		ext := path.Ext(e.Name())
		name := fmt.Sprintf("%s.%s%s", strings.TrimSuffix(e.Name(), ext), hex.EncodeToString(sum[:6]), ext)
		a.url[e.Name()], a.files[name] = "assets/"+name, content
	}
	return a
}

// ServeHTTP answers a file, which never changes under its name.
func (a assets) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	content, ok := a.files[r.PathValue("name")]
	if !ok {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", mime.TypeByExtension(path.Ext(r.PathValue("name"))))
	w.Header().Set("Cache-Control", "private, max-age=31536000, immutable")
	_, _ = w.Write(content) // a browser that went away needs no answer
}
