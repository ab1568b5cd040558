// Package ports finds ports for servers of tests that have to be told one: a program
// that takes no listener, or one that ends and comes back where it was.
package ports

import (
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
)

// The kernel's own choice, which connections and listeners without a wish are given,
// begins at 32768 (ip_local_port_range), and that of Kubernetes for services at 30000.
// Between these nobody is given a port by chance, however long it is not in use.
const from, to = 20000, 30000

// Free is a port of the address that nobody has; "" is every address.
func Free(t testing.TB, address string) string {
	t.Helper()
	var last error
	for range 100 {
		port := strconv.Itoa(from + rand.IntN(to-from))
		l, err := net.Listen("tcp", net.JoinHostPort(address, port))
		if err == nil {
			err = l.Close()
		}
		if err == nil {
			return port
		}
		last = err
	}
	t.Fatalf("no port is free: %v", last)
	return ""
}
