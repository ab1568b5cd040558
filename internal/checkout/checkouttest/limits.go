// Package checkouttest has what tests need to open a store of checkouts.
package checkouttest

import (
	"time"

	"github.com/datalayer/node-mounts/internal/checkout"
)

// Limits are wide enough not to matter: a test narrows the one that it is about.
func Limits() checkout.Limits {
	return checkout.Limits{
		Bytes: 2 << 30, Inodes: 200_000, Total: 50 << 30, Free: 10, Memory: 1 << 30,
		Timeout: 5 * time.Minute, Budget: 10 << 30, Jobs: 8, PerHost: 7,
	}
}
