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
)

// maxPrompt bounds a question and an answer.
const maxPrompt = 64 << 10

// askpass is the child's half: git started it with a question, the agent has the
// answer. Nothing secret is in its arguments or its environment.
func askpass(args []string, out io.Writer) error {
	if len(args) != 1 || len(args[0]) > maxPrompt {
		return errors.New("one question is expected")
	}
	if err := unix.Sendto(askFD, []byte(args[0]), unix.MSG_NOSIGNAL, nil); err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	answer := make([]byte, maxPrompt)
	n, err := unix.Read(askFD, answer)
	if err != nil || n == 0 {
		return fmt.Errorf("no answer: %w", err)
	}
	// The first byte keeps an empty answer apart from a refusal.
	_, err = fmt.Fprintf(out, "%s\n", answer[1:n])
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
		return nil, fmt.Errorf("make a socket for askpass: %w", err)
	}
	ours := os.NewFile(uintptr(fds[0]), "askpass")
	defer ours.Close()
	a := &answerer{child: os.NewFile(uintptr(fds[1]), "askpass-child"), done: make(chan struct{})}
	if a.conn, err = net.FileConn(ours); err != nil {
		a.child.Close()
		return nil, fmt.Errorf("use the socket of askpass: %w", err)
	}
	go func() {
		defer close(a.done)
		question := make([]byte, maxPrompt)
		for {
			n, err := a.conn.Read(question)
			if err != nil || n == 0 {
				return
			}
			var reply []byte
			text, secret, ok := answerTo(string(question[:n]), r, c)
			if !ok {
				return
			}
			if secret {
				used.Store(true)
			}
			reply = append(append(reply, '='), text...)
			if _, err := a.conn.Write(reply); err != nil {
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

// answerTo answers "Username for 'https://host': " and "Password for
// 'https://user@host': ". The question names the server that gets the answer; one
// about any other server is not answered.
func answerTo(question string, r remote, c *Credential) (text string, secret, ok bool) {
	what, about, found := strings.Cut(question, " for '")
	end := strings.LastIndexByte(about, '\'')
	if !found || end < 0 {
		return "", false, false
	}
	asked, err := url.Parse(about[:end])
	if err != nil || asked.Scheme != "https" {
		return "", false, false
	}
	port := asked.Port()
	if port == "" {
		port = "443"
	}
	if net.JoinHostPort(asked.Hostname(), port) != r.hostPort() {
		return "", false, false
	}
	switch what {
	case "Username":
		return c.username(), false, true
	case "Password":
		return c.password(), true, true
	}
	return "", false, false
}
