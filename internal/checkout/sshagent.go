package checkout

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/internal/bug"
)

// signer signs for the ssh of one job. The private key stays in this process: ssh
// gets signatures over a socket that speaks the protocol of ssh-agent.
type signer struct {
	path     string
	listener *net.UnixListener
	serving  sync.WaitGroup
	ring     signing
	// namespace is the pid namespace of the processes that may ask, once known is closed.
	namespace string
	known     chan struct{}
	closing   chan struct{}
}

// signing is a key ring that notes its use and takes no changes.
type signing struct {
	agent.ExtendedAgent
	used *atomic.Bool
}

// Sign implements agent.Agent.
func (s signing) Sign(key ssh.PublicKey, data []byte) (*ssh.Signature, error) {
	s.used.Store(true)
	return s.ExtendedAgent.Sign(key, data)
}

// SignWithFlags implements agent.ExtendedAgent: RSA keys sign with SHA-2 by it.
func (s signing) SignWithFlags(key ssh.PublicKey, data []byte, flags agent.SignatureFlags) (*ssh.Signature, error) {
	s.used.Store(true)
	return s.ExtendedAgent.SignWithFlags(key, data, flags)
}

// Add, Remove, RemoveAll and Lock would change the ring.
func (signing) Add(agent.AddedKey) error       { return errRing }
func (signing) Remove(ssh.PublicKey) error     { return errRing }
func (signing) RemoveAll() error               { return errRing }
func (signing) Lock([]byte) error              { return errRing }
func (signing) Unlock([]byte) error            { return errRing }
func (signing) Signers() ([]ssh.Signer, error) { return nil, errRing }

var errRing = errors.New("this key ring does not change")

// serveKey makes the socket in a folder of the job, for the user that runs ssh.
func serveKey(dir string, uid, gid int, c *Credential, used *atomic.Bool) (*signer, error) {
	key, err := ssh.ParseRawPrivateKey(c.SSHKey)
	if err != nil {
		// The parser's error may quote the key.
		message := "the Secret's ssh-privatekey cannot be read"
		if _, encrypted := errors.AsType[*ssh.PassphraseMissingError](err); encrypted {
			message = "the Secret's ssh-privatekey has a passphrase: store it without one"
		}
		return nil, fail(AuthRefused, message)
	}
	ring, ok := agent.NewKeyring().(agent.ExtendedAgent)
	if !ok {
		return nil, fail(Failed, "the key ring cannot sign")
	}
	if err := ring.Add(agent.AddedKey{PrivateKey: key}); err != nil {
		return nil, fail(AuthRefused, "the Secret's ssh-privatekey is of a kind that ssh cannot use")
	}
	s := &signer{path: filepath.Join(dir, "keys"), ring: signing{ring, used}, known: make(chan struct{}), closing: make(chan struct{})}
	s.listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: s.path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("make the socket of the ssh key: %w", err)
	}
	if err := errors.Join(os.Chmod(s.path, 0o600), os.Lchown(s.path, uid, gid)); err != nil {
		_ = s.listener.Close()
		return nil, fmt.Errorf("give the socket of the ssh key away: %w", err)
	}
	s.serving.Go(s.serve)
	return s, nil
}

func (s *signer) serve() {
	for {
		conn, err := s.listener.AcceptUnix()
		if err != nil {
			return
		}
		if s.ofJob(conn) {
			// It returns when ssh closes the connection, at the latest with its process.
			_ = bug.Catch(func() error { return agent.ServeAgent(s.ring, conn) })
		}
		_ = conn.Close()
	}
}

// started tells the signer which process its job is.
func (s *signer) started(pid int) {
	// Without an answer no peer is of the job.
	s.namespace, _ = os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", pid))
	close(s.known)
}

// ofJob says whether a peer belongs to the job: another tenant's git runs as the same
// user, in another pid namespace.
func (s *signer) ofJob(conn *net.UnixConn) bool {
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	var cred *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		cred, failed = unix.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || failed != nil {
		return false
	}
	select {
	case <-s.known:
	case <-s.closing:
		return false
	}
	theirs, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", cred.Pid))
	return err == nil && theirs == s.namespace
}

func (s *signer) close() {
	close(s.closing)
	_ = s.listener.Close()
	s.serving.Wait()
	_ = os.Remove(s.path)
}
