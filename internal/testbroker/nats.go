package testbroker

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/bluecone-go/bluecone/internal/process"
)

// natsConfig keeps streams in files. This version does not know sync_interval: what it has acknowledged outlives its process, not
// its machine.
const natsConfig = `listen: "127.0.0.1:%s"
authorization { user: %s, password: "%s" }
jetstream { store_dir: %q, max_memory_store: 64MB, max_file_store: 1GB }
`

// natsTLS has the server speak both on one port.
const natsTLS = `tls { cert_file: "%[3]s", key_file: "%[4]s" } # of %[2]s, at %[1]s
allow_non_tls: true
`

func nats(b *Broker, home string) error {
	port, err := process.FreePort()
	if err != nil {
		return err
	}
	b.URL = address("nats", port)
	if b.secure != nil {
		b.secure.port = port
	}
	config := b.path("nats.conf")
	b.configure = func() error {
		text := fmt.Appendf(nil, natsConfig, port, user, b.password(), b.path("data"))
		return os.WriteFile(config, append(text, b.secured(natsTLS)...), 0o600)
	}
	b.processes = []*server{{
		name:    "nats-server",
		command: func() *exec.Cmd { return exec.Command(filepath.Join(home, "bin", "nats-server"), "-c", config) },
		ready: func() error {
			hello := fmt.Sprintf("CONNECT {\"user\":%q,\"pass\":%q,\"verbose\":false}\r\nPING\r\n", user, b.password())
			return answersLine(b.URL.Host, hello, "PONG", "-ERR")
		},
	}}
	return nil
}
