package testbroker

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/bluecone-go/bluecone/internal/process"
)

// redisConfig has every command on disk before it is answered.
const redisConfig = `bind 127.0.0.1
port %s
dir %q
appendonly yes
appendfsync always
save ""
maxmemory-policy noeviction
user default off
user %s on >%s ~* &* +@all
`

const redisTLS = `tls-port %[1]s
tls-ca-cert-file %[2]s
tls-cert-file %[3]s
tls-key-file %[4]s
tls-auth-clients no
`

func redis(b *Broker, home string) error {
	port, err := process.FreePort()
	if err != nil {
		return err
	}
	b.URL = address("redis", port)
	config := b.path("redis.conf")
	b.configure = func() error {
		text := fmt.Appendf(nil, redisConfig, port, b.dir.Path, user, b.password())
		return os.WriteFile(config, append(text, b.secured(redisTLS)...), 0o600)
	}
	b.processes = []*server{{
		name:    "redis-server",
		command: func() *exec.Cmd { return exec.Command(filepath.Join(home, "bin", "redis-server"), config) },
		ready: func() error {
			return answers(b.URL.Host, fmt.Sprintf("AUTH %s %s\r\nPING\r\n", user, b.password()), "+OK\r\n+PONG\r\n")
		},
	}}
	return nil
}
