package bench

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// samples are measurements of one thing, in the order in which they were made.
type samples []time.Duration

// at is the quantile q by nearest rank: a measurement that was made, no mean of
// two.
func (s samples) at(q float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	rank := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[max(rank, 0)]
}

func (s samples) p50() time.Duration { return s.at(0.50) }
func (s samples) p99() time.Duration { return s.at(0.99) }

func (s samples) sum() time.Duration {
	var sum time.Duration
	for _, d := range s {
		sum += d
	}
	return sum
}

// ratio is how many times as long a takes as b.
func ratio(a, b time.Duration) float64 {
	if b == 0 {
		return math.NaN()
	}
	return float64(a) / float64(b)
}

// micros prints p50 and p99 in microseconds.
func (s samples) micros() string { return fmt.Sprintf("%.0f / %.0f", us(s.p50()), us(s.p99())) }

// millis prints p50 and p99 in milliseconds.
func (s samples) millis() string { return fmt.Sprintf("%.1f / %.1f", ms(s.p50()), ms(s.p99())) }

// most is the longest.
func (s samples) most() time.Duration { return s.at(1) }

// few prints the median and the most in milliseconds: of few measurements, the
// longest is no p99.
func (s samples) few() string { return fmt.Sprintf("%.1f (%.1f)", ms(s.p50()), ms(s.most())) }

// over prints p50 and p99 as multiples of those of base.
func (s samples) over(base samples) string {
	return fmt.Sprintf("%.2f / %.2f", ratio(s.p50(), base.p50()), ratio(s.p99(), base.p99()))
}

func us(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
