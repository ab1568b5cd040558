package checkout

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/bug"
)

// maxQuestion bounds a question and an answer.
const maxQuestion = 64 << 10

// credentialHelper is the child's half: git started it to get a credential, and the
// agent has it. Nothing of it is in an argument or in the environment of a process,
// the name of the user included, which the prompts for git's askpass repeat.
func credentialHelper(args []string, in io.Reader, out io.Writer) error {
	if len(args) != 1 {
		return errors.New("one argument is expected")
	}
	text, err := io.ReadAll(io.LimitReader(in, maxQuestion))
	if err != nil {
		return fmt.Errorf("read the question: %w", err)
	}
	if args[0] != "get" {
		return nil // to store and to erase it is the agent's business
	}
	var question []byte
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "protocol=") || strings.HasPrefix(line, "host=") {
			question = append(question, line...)
		}
	}
	if err := unix.Sendto(askFD, question, unix.MSG_NOSIGNAL, nil); err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	answer := make([]byte, maxQuestion)
	n, err := unix.Read(askFD, answer)
	if err != nil || n == 0 {
		return fmt.Errorf("no answer: %w", err)
	}
	_, err = out.Write(answer[:n])
	return err
}

// answerer is the agent's half, for one run of git.
type answerer struct {
	child *os.File // the end that git inherits
	conn  net.Conn
	done  chan struct{}
}

// answer opens a socket for one run of git and answers on it the questions about
// this server, with this credential. used turns true when the password was asked.
func answer(r remote, c *Credential, used *atomic.Bool) (*answerer, error) {
	// A packet socket keeps a question in one piece, whoever of git's children asks.
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("make a socket for the credential: %w", err)
	}
	ours := os.NewFile(uintptr(fds[0]), "credential")
	defer ours.Close()
	a := &answerer{child: os.NewFile(uintptr(fds[1]), "credential-child"), done: make(chan struct{})}
	if a.conn, err = net.FileConn(ours); err != nil {
		a.child.Close()
		return nil, fmt.Errorf("use the socket of the credential: %w", err)
	}
	go func() {
		defer close(a.done)
		question := make([]byte, maxQuestion)
		for {
			n, err := a.conn.Read(question)
			if err != nil || n == 0 {
				return
			}
			reply := ""
			if bug.Catch(func() error { reply = answerTo(string(question[:n]), r, c); return nil }) != nil || reply == "" {
				return
			}
			used.Store(true)
			if _, err := io.WriteString(a.conn, reply); err != nil {
				return
			}
		}
	}()
	return a, nil
}

// close ends it; git has ended before, or gets no further answer.
func (a *answerer) close() {
	a.child.Close()
	_ = a.conn.Close()
	<-a.done
}

// answerTo answers a question of the form "protocol=https\nhost=example.org:8443\n".
// It names the server that gets the answer; one about any other server, a proxy for
// one, is answered "".
func answerTo(question string, r remote, c *Credential) string {
	var protocol, host string
	for line := range strings.Lines(question) {
		line = strings.TrimSuffix(line, "\n")
		if v, ok := strings.CutPrefix(line, "protocol="); ok {
			protocol = v
		}
		if v, ok := strings.CutPrefix(line, "host="); ok {
			host = v
		}
	}
	asked, err := url.Parse(protocol + "://" + host)
	if err != nil || asked.Scheme != "https" || asked.Host != host || asked.Hostname() == "" {
		return ""
	}
	port := asked.Port()
	if port == "" {
		port = "443"
	}
	if net.JoinHostPort(asked.Hostname(), port) != r.hostPort() {
		return ""
	}
	return "username=" + c.username() + "\npassword=" + c.password() + "\n"
}
