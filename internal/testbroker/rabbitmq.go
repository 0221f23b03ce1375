package testbroker

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// rabbitmqConfig makes the user when the broker starts for the first time.
const rabbitmqConfig = `listeners.tcp.1 = 127.0.0.1:%s
default_user = %s
default_pass = %s
log.console = true
log.file = false
raft.wal_max_size_bytes = 16777216
max_message_size = 1048576
`

const rabbitmqTLS = `listeners.ssl.1 = 127.0.0.1:%[1]s
ssl_options.cacertfile = %[2]s
ssl_options.certfile = %[3]s
ssl_options.keyfile = %[4]s
ssl_options.verify = verify_none
`

// rabbitmq starts an Erlang node, and before it the node's own port mapper, which it would otherwise start as a daemon.
func rabbitmq(b *Broker, home string) error {
	ports, err := freePorts(3)
	if err != nil {
		return err
	}
	port, mapper, distribution := ports[0], ports[1], ports[2]
	b.URL = address("amqp", port)
	b.configure = func() error {
		text := fmt.Appendf(nil, rabbitmqConfig, port, user, b.password())
		return errors.Join(
			os.WriteFile(b.path("rabbitmq.conf"), append(text, b.secured(rabbitmqTLS)...), 0o600),
			os.WriteFile(b.path("environment"), nil, 0o600))
	}
	command := func(program string, args ...string) *exec.Cmd {
		cmd := exec.Command(filepath.Join(home, "bin", program), args...)
		cmd.Env = append(os.Environ(), rabbitmqEnvironment(b, mapper, distribution)...)
		return cmd
	}
	b.processes = []*server{
		{
			name:    "epmd",
			command: func() *exec.Cmd { return command("epmd") },
			ready:   func() error { return answers("127.0.0.1:"+mapper, "\x00\x01n", "\x00") },
		},
		{
			name:    "rabbitmq-server",
			command: func() *exec.Cmd { return command("rabbitmq-server") },
			ready:   func() error { return answers(b.URL.Host, "AMQP\x00\x00\x09\x01", "\x01\x00\x00") },
		},
	}
	b.eval = func(program string) error {
		out, err := command("rabbitmqctl", "eval", program).CombinedOutput()
		if err != nil {
			return fmt.Errorf("rabbitmqctl: %w: %s", err, strings.TrimSpace(string(out)))
		}
		return nil
	}
	// The queue of a single node of this version may stay without a leader if a client asks for it while the node starts.
	b.restarted = func() error {
		return b.eval("[ra:trigger_election({Name, node()}) || {Name, _} <- ra_directory:list_registered(quorum_queues)].")
	}
	b.changePassword = func(password string) error {
		const change = `rabbit_auth_backend_internal:change_password(<<"%s">>, <<"%s">>, <<"test">>), ` +
			`[rabbit_networking:close_connection(C, "the password has changed") || C <- rabbit_networking:connections()].`
		return b.eval(fmt.Sprintf(change, user, password))
	}
	return nil
}

func rabbitmqEnvironment(b *Broker, mapper, distribution string) []string {
	return []string{
		"HOME=" + b.dir.Path, // of the cookie by which rabbitmqctl is let in
		"ERL_EPMD_PORT=" + mapper,
		"ERL_EPMD_ADDRESS=127.0.0.1",
		"RABBITMQ_NODENAME=bluecone@localhost",
		"RABBITMQ_DIST_PORT=" + distribution,
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS=-kernel inet_dist_use_interface {127,0,0,1}",
		"RABBITMQ_CONFIG_FILE=" + b.path("rabbitmq.conf"),
		"RABBITMQ_CONF_ENV_FILE=" + b.path("environment"),
		"RABBITMQ_ENABLED_PLUGINS_FILE=" + b.path("plugins"),
		"RABBITMQ_MNESIA_BASE=" + b.path("data"),
		"RABBITMQ_LOG_BASE=" + b.path("log"),
		"RABBITMQ_PID_FILE=" + b.path("pid"),
		"RUNNING_UNDER_SYSTEMD=true", // the script becomes the node, instead of starting it
	}
}
