package awscreds

import (
	"container/list"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

func TestForOneConnectionTooManyTheOldestOfThoseThatAreOpenIsClosed(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	b := &bounded{Listener: l, max: 2, open: list.New()}
	connect := func() (theirs, ours net.Conn) {
		t.Helper()
		theirs, err := net.Dial("tcp4", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = theirs.Close() })
		if ours, err = b.Accept(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = ours.Close() })
		return theirs, ours
	}
	// Bytes come through where a connection is open, and an end where it is closed.
	open := func(theirs, ours net.Conn) bool {
		t.Helper()
		_, _ = ours.Write([]byte("x"))
		_ = theirs.SetReadDeadline(time.Now().Add(30 * time.Second))
		_, err := theirs.Read(make([]byte, 1))
		if err != nil && !errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		return err == nil
	}
	one, ourOne := connect()
	two, ourTwo := connect()
	_ = ourOne.Close()
	_ = ourOne.Close()
	three, ourThree := connect()
	if open(one, ourOne) || !open(two, ourTwo) || !open(three, ourThree) {
		t.Fatal("one that had been closed counts")
	}
	four, ourFour := connect()
	if open(two, ourTwo) || !open(three, ourThree) || !open(four, ourFour) {
		t.Fatal("another than the oldest was closed")
	}
}
