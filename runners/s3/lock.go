package main

import "sync"

// A lock is held by one who writes or by any number who read, as sync.RWMutex is. Whoever
// waits for it may give up: it is held during requests, and a server may hang.
type lock struct {
	mu      sync.Mutex
	readers int
	written bool
	wanting int           // writers that wait; readers that come now go after them
	let     chan struct{} // closed when somebody lets go; nil: nobody waits
}

// take takes the lock, or returns what wait does, which waits for a channel to be
// closed and returns 0 then.
func (l *lock) take(write bool, wait func(<-chan struct{}) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if write {
		l.wanting++
		defer func() {
			// Readers may have waited for this one alone.
			if l.wanting--; l.wanting == 0 && !l.written {
				l.wake()
			}
		}()
	}
	for !l.free(write) {
		if l.let == nil {
			l.let = make(chan struct{})
		}
		let := l.let
		l.mu.Unlock()
		err := wait(let)
		l.mu.Lock()
		if err != nil {
			return err
		}
	}
	l.hold(write)
	return nil
}

// try takes the lock for writing where it is free.
func (l *lock) try() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.free(true) {
		return false
	}
	l.hold(true)
	return true
}

func (l *lock) free(write bool) bool {
	if write {
		return !l.written && l.readers == 0
	}
	return !l.written && l.wanting == 0
}

func (l *lock) hold(write bool) {
	if write {
		l.written = true
	} else {
		l.readers++
	}
}

// unlock lets go of what was taken.
func (l *lock) unlock() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.written {
		l.written = false
	} else {
		l.readers--
	}
	l.wake()
}

// wake is called with mu held.
func (l *lock) wake() {
	if l.let != nil {
		close(l.let)
		l.let = nil
	}
}

// forever waits as long as it takes.
func forever(let <-chan struct{}) error {
	<-let
	return nil
}
