package awscreds

import (
	"container/list"
	"net"
	"sync"
)

// bounded is a listener whose connections are at most max: for one more, the oldest
// is closed. A process that holds connections and says nothing must not keep the
// others from their credentials, whose connections last milliseconds; who it is
// cannot be known before it has shown a token.
type bounded struct {
	net.Listener
	max int

	mu   sync.Mutex
	open *list.List // of *conn, oldest first
}

type conn struct {
	net.Conn
	in   *bounded
	once sync.Once
	at   *list.Element
}

func (b *bounded) Accept() (net.Conn, error) {
	c, err := b.Listener.Accept()
	if err != nil {
		return nil, err
	}
	mine := &conn{Conn: c, in: b}
	b.mu.Lock()
	mine.at = b.open.PushBack(mine)
	var oldest *conn
	if b.open.Len() > b.max {
		oldest, _ = b.open.Front().Value.(*conn)
	}
	b.mu.Unlock()
	if oldest != nil {
		_ = oldest.Close() // whoever had it is not waited for
	}
	return mine, nil
}

func (c *conn) Close() error {
	c.once.Do(func() {
		c.in.mu.Lock()
		c.in.open.Remove(c.at)
		c.in.mu.Unlock()
	})
	return c.Conn.Close()
}
