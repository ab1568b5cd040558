package keeper

import (
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// child is one that was started.
type child struct {
	*process
	id      string
	use     string
	note    []byte
	uid     int
	gid     int
	started time.Time
	memory  int64
	cache   string // its name; "" none

	out    *os.File // the pipe it prints into
	words  *words
	copied chan struct{} // closed when nobody reads out any more

	tooBig atomic.Bool   // the keeper ends it for its memory
	done   chan struct{} // closed when exit is there
	exit   *Exit         // guarded by the service's mu

	// The end that Stop has asked for; guarded by the process's mu.
	killAt time.Time
	killer *time.Timer
}

// stop sends SIGTERM now and SIGKILL after grace, or sooner if that was asked for.
func (k *child) stop(grace time.Duration) {
	k.signal(unix.SIGTERM)
	at := time.Now().Add(grace)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.killer != nil {
		if !at.Before(k.killAt) {
			return
		}
		k.killer.Stop()
	}
	k.killAt = at
	k.killer = time.AfterFunc(grace, func() { k.signal(unix.SIGKILL) })
}

// settle waits until the exit of a child that has ended is there, which takes no
// longer than to read what is left in a pipe.
func (k *child) settle() {
	if !k.dead() {
		return
	}
	select {
	case <-k.done:
	case <-time.After(killTime):
	}
}

// start starts a child and answers for it from then on.
func (s *service) start(o *order, descriptors rights) (*child, error) {
	if err := checkProgram(descriptors[0]); err != nil {
		return nil, err
	}
	if err := s.reserve(o.CacheName); err != nil {
		return nil, err
	}
	k, err := s.launch(o, descriptors)
	if err != nil {
		s.mu.Lock()
		s.running--
		s.mu.Unlock()
		go func() {
			defer s.work.Done()
			s.releaseCache(o.CacheName, o.UID, o.GID)
		}()
		s.Log.Warn("a child could not be started", "use", o.Use, "error", err)
		return nil, err
	}
	s.mu.Lock()
	s.children = append(s.children, k)
	late := s.ending
	s.mu.Unlock()
	s.Log.Info("a child was started", "use", k.use, "id", k.id, "uid", k.uid, "pid", k.pid, "program", string(o.Args[0]))
	go s.finish(k)
	if late {
		// The others were told to end before this one was known.
		k.signal(unix.SIGKILL)
		unix.Close(k.handle)
		return nil, errEnding
	}
	return k, nil
}

// checkProgram refuses what execve would refuse less clearly.
func checkProgram(fd int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return os.NewSyscallError("fstat", err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&0o111 == 0 {
		return refuse("the program is no regular file that can be executed (mode %#o)", st.Mode)
	}
	return nil
}

// reserve counts a child that is about to be started, and takes the name of its cache.
// What it counts is in s.work.
func (s *service) reserve(cache string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.ending:
		return errEnding
	case s.running >= s.MaxChildren:
		return refuse("%d children run, which is as many as may", s.running)
	case cache != "" && s.CacheRoot == "":
		return refuse("this keeper has no folder for caches: start it with --cache-root")
	case s.caches[cache]:
		return refuse("the cache %s is in use, or is being removed: choose another name", cache)
	}
	if cache != "" {
		s.caches[cache] = true
	}
	s.running++
	s.work.Add(1)
	return nil
}

// launch starts the process of a child.
func (s *service) launch(o *order, descriptors rights) (*child, error) {
	k := &child{
		id: rand.Text(), use: o.Use, note: o.Note, uid: o.UID, gid: o.GID, started: time.Now(), memory: o.Memory, cache: o.CacheName,
		copied: make(chan struct{}), done: make(chan struct{}),
	}
	k.words = &words{prefix: k.use + " " + k.id + ": ", to: s.Output}
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("pipe", err)
	}
	err := unix.SetNonblock(pipe[0], true) // our end alone
	k.out = os.NewFile(uintptr(pipe[0]), "output")
	if err == nil {
		go k.copy()
		to := &spec{UID: o.UID, GID: o.GID, Args: o.Args, Env: o.Env, Files: o.Files}
		if o.CacheName != "" {
			to.Cache = filepath.Join(s.CacheRoot, o.CacheName)
		}
		k.process, err = s.spawner.start(to, stdio{s.null, pipe[1]}, startTime, descriptors...)
	}
	unix.Close(pipe[1])
	if err != nil {
		k.out.Close()
		return nil, err
	}
	return k, nil
}

// copy passes on what the child prints, until it prints no more or is told to stop.
func (k *child) copy() {
	defer close(k.copied)
	part := make([]byte, 8<<10)
	for {
		n, err := k.out.Read(part)
		_, _ = k.words.Write(part[:n])
		if err != nil {
			return
		}
	}
}

// lastWords takes what an ended child has left in the pipe and closes it. It does not
// wait for its end: another process may hold that.
func (k *child) lastWords() string {
	_ = k.out.SetReadDeadline(time.Unix(1, 0))
	<-k.copied
	if raw, err := k.out.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			part := make([]byte, 8<<10)
			const most = 128 << 10 // more than a pipe holds
			for read := 0; read < most; {
				n, err := unix.Read(int(fd), part)
				if errors.Is(err, unix.EINTR) {
					continue
				}
				if err != nil || n <= 0 {
					return
				}
				_, _ = k.words.Write(part[:n])
				read += n
			}
		})
	}
	k.out.Close()
	return k.words.end()
}

// finish records the end of a child, when it comes.
func (s *service) finish(k *child) {
	defer s.work.Done()
	<-k.gone
	exit := describe(k.status)
	exit.Words, exit.At = k.lastWords(), time.Now()
	exit.Memory = k.tooBig.Load() && exit.Signal == unix.SIGKILL
	k.mu.Lock()
	if k.killer != nil {
		k.killer.Stop()
	}
	k.mu.Unlock()
	s.mu.Lock()
	k.exit = &exit
	s.running--
	s.dropOldest()
	s.mu.Unlock()
	close(k.done)
	s.Log.Info("a child has ended", "use", k.use, "id", k.id, "how", exit.String())
	s.releaseCache(k.cache, k.uid, k.gid)
}

// dropOldest keeps the list of those that have ended bounded.
func (s *service) dropOldest() {
	if len(s.children)-s.running <= s.MaxChildren {
		return
	}
	if i := slices.IndexFunc(s.children, func(k *child) bool { return k.exit != nil }); i >= 0 {
		s.children = slices.Delete(s.children, i, i+1)
	}
}

func (s *service) find(id string) *child {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.children {
		if k.id == id {
			return k
		}
	}
	return nil
}

// view is what a client is told of a child.
func (s *service) view(k *child) Child {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Child{ID: k.id, Use: k.use, Note: k.note, UID: k.uid, Started: k.started, Ended: k.exit}
}

func (s *service) list() []Child {
	s.mu.Lock()
	children := slices.Clone(s.children)
	s.mu.Unlock()
	all := make([]Child, len(children))
	for i, k := range children {
		k.settle()
		all[i] = s.view(k)
	}
	return all
}

// forget drops a child that has ended.
func (s *service) forget(id string) *failure {
	k := s.find(id)
	if k == nil {
		return nil
	}
	k.settle()
	s.mu.Lock()
	defer s.mu.Unlock()
	if k.exit == nil {
		return refuse("the child %s runs: stop it first", id)
	}
	s.children = slices.DeleteFunc(s.children, func(other *child) bool { return other == k })
	return nil
}

// end ends the children.
func (s *service) end() {
	s.mu.Lock()
	s.ending = true
	left := slices.Clone(s.children)
	running := s.running
	s.mu.Unlock()
	s.Log.Info("the keeper ends", "running", running, "grace", s.Grace.String())
	for _, k := range left {
		k.signal(unix.SIGTERM)
	}
	done := make(chan struct{})
	go func() {
		s.work.Wait()
		close(done)
	}()
	select {
	case <-done:
		return
	case <-time.After(s.Grace):
	}
	s.spawner.forbid()
	for _, k := range left {
		if !k.dead() {
			s.Log.Warn("a child does not end and is killed", "use", k.use, "id", k.id)
		}
		k.signal(unix.SIGKILL)
	}
	select {
	case <-done:
	case <-time.After(killTime): // one that hangs in the kernel; the kernel ends it with us
	}
}
