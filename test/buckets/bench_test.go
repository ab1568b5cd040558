package buckets

import (
	"slices"
	"testing"
	"time"

	"github.com/datalayer/node-mounts/grant"
)

// BenchmarkGrant grants a bucket to a running Pod, reads a file's first byte in the
// sandbox, and revokes it. The API takes no time here.
func BenchmarkGrant(b *testing.B) {
	w := newWorld(b)
	w.s3.Put(bucketName, "a.txt", []byte("a"))
	p, c := w.pod("pod")
	w.secrets.put(p, "session", w.s3.Key().Data())
	var ready, first, revoked []time.Duration
	for b.Loop() {
		began := time.Now()
		p.Grant(bucketGrant(bucketName, grant.ReadWrite))
		p.Answered(isReady)
		ready = append(ready, time.Since(began))
		if got, err := c.ReadFile(in + "data/a.txt"); err != nil || string(got) != "a" {
			b.Fatalf("%q, %v", got, err)
		}
		first = append(first, time.Since(began))
		began = time.Now()
		p.Grant()
		p.Answered(isReady)
		revoked = append(revoked, time.Since(began))
	}
	for name, all := range map[string][]time.Duration{"ready": ready, "first-byte": first, "revoked": revoked} {
		slices.Sort(all)
		b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, name+"-p50-ms")
		b.ReportMetric(float64(all[len(all)-1].Microseconds())/1000, name+"-max-ms")
	}
}
