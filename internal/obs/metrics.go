package obs

import (
	"math"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sys/unix"

	"github.com/datalayer/node-mounts/grant"
)

// The names are part of the contract: alerts are written for them.
const (
	prefix = "datalayer_mount_gateway_"

	leakedTotal   = prefix + "leaked_total"
	leaked        = prefix + "leaked"
	failedTotal   = prefix + "failed_total"
	mounts        = prefix + "mounts"
	pods          = prefix + "pods"
	grantedTotal  = prefix + "granted_total"
	revokedTotal  = prefix + "revoked_total"
	releasedTotal = prefix + "released_total"
	grantDuration = prefix + "grant_duration_seconds"
	readySeconds  = prefix + "ready_seconds"
	buildInfo     = prefix + "build_info"
)

// Types of metrics, as the exposition format names them.
const (
	counter   = "counter"
	gauge     = "gauge"
	histogram = "histogram"
)

// Info describes one metric of the agent. The Go runtime's and the process's own
// metrics (go_*, process_*) are served beside them.
type Info struct {
	Name, Type, Help string
	// Labels are its label names. Their values come from fixed tables: none
	// holds a uid, a path or a URL.
	Labels []string
}

// Metrics is the table of the agent's own metrics.
func Metrics() []Info {
	return []Info{
		{leakedTotal, counter, "Mounts that would not unmount, or that a process still held when they were revoked. Each may keep its Pod in Terminating.", nil},
		{leaked, gauge, "Mounts that should be gone and are not, now.", nil},
		{failedTotal, counter, "Grants answered as failed, by code. A sandbox runs without a folder it asked for.", []string{"code"}},
		{mounts, gauge, "Grants mounted now.", nil},
		{pods, gauge, "Pods that have a tree on this node now.", nil},
		{grantedTotal, counter, "Grants mounted since the agent started.", nil},
		{revokedTotal, counter, "Grants revoked since the agent started.", nil},
		{releasedTotal, counter, "Pods released since the agent started.", nil},
		{grantDuration, histogram, "Time to deliver one grant, by kind.", []string{"kind"}},
		{readySeconds, histogram, "Time from the agent's first sight of a request, which is a grant annotation that has no answer yet, to the answer that all of it is there. Each request counts once; a mount that died and is there again is none.", nil},
		{buildInfo, gauge, "Always 1. The labels say what runs.", []string{"version", "goversion", "kernel"}},
	}
}

// plainKind is the kind "" as a label value: an empty label would be the same as
// none.
const plainKind = "plain"

// grantBuckets reach from a bind mount (20 to 45 µs) to a checkout at its
// timeout (300 s).
func grantBuckets() []float64 {
	return []float64{
		20e-6, 50e-6, 100e-6, 250e-6, 500e-6,
		1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3,
		1, 2.5, 5, 10, 30, 60, 120, 300,
	}
}

// readyBuckets begin where a round trip to the API server does.
func readyBuckets() []float64 {
	return []float64{1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3, 1, 2.5, 5, 10, 30, 60, 120, 300}
}

// Recorder counts what the agent does. Its methods may be called from any
// goroutine.
type Recorder struct {
	registry *prometheus.Registry

	leakedTotal, granted, revoked, released prometheus.Counter
	leaked, mounts, pods                    prometheus.Gauge
	ready                                   prometheus.Observer
	failed                                  map[grant.Code]prometheus.Counter
	durations                               map[grant.Kind]prometheus.Observer
}

// NewRecorder makes a Recorder with a registry of its own. Every code and every
// kind is present from the start, so that a rate over the first failure is not
// lost. version and kernel are values of build_info.
func NewRecorder(version, kernel string) *Recorder {
	help := make(map[string]Info)
	for _, i := range Metrics() {
		help[i.Name] = i
	}
	r := &Recorder{
		registry:  prometheus.NewRegistry(),
		failed:    make(map[grant.Code]prometheus.Counter),
		durations: make(map[grant.Kind]prometheus.Observer),
	}
	count := func(name string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help[name].Help})
		r.registry.MustRegister(c)
		return c
	}
	measure := func(name string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help[name].Help})
		r.registry.MustRegister(g)
		return g
	}
	r.leakedTotal, r.granted, r.revoked, r.released = count(leakedTotal), count(grantedTotal), count(revokedTotal), count(releasedTotal)
	r.leaked, r.mounts, r.pods = measure(leaked), measure(mounts), measure(pods)

	failed := prometheus.NewCounterVec(prometheus.CounterOpts{Name: failedTotal, Help: help[failedTotal].Help}, help[failedTotal].Labels)
	for _, c := range grant.Codes() {
		r.failed[c.Code] = failed.WithLabelValues(string(c.Code))
	}
	durations := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: grantDuration, Help: help[grantDuration].Help, Buckets: grantBuckets(),
	}, help[grantDuration].Labels)
	for _, k := range grant.Kinds() {
		r.durations[k.Kind] = durations.WithLabelValues(kindLabel(k.Kind))
	}
	ready := prometheus.NewHistogram(prometheus.HistogramOpts{Name: readySeconds, Help: help[readySeconds].Help, Buckets: readyBuckets()})
	r.ready = ready
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: buildInfo, Help: help[buildInfo].Help}, help[buildInfo].Labels)
	info.WithLabelValues(version, runtime.Version(), kernel).Set(1)

	r.registry.MustRegister(failed, durations, ready, info,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

func kindLabel(k grant.Kind) string {
	if k == grant.KindPlain {
		return plainKind
	}
	return string(k)
}

// Gatherer gives the metrics to a handler.
func (r *Recorder) Gatherer() prometheus.Gatherer { return r.registry }

// Granted counts a grant that was mounted, and how long that took.
func (r *Recorder) Granted(kind grant.Kind, took time.Duration) {
	r.granted.Inc()
	// A kind outside the table makes no label: the set of series is fixed.
	if d, ok := r.durations[kind]; ok {
		d.Observe(took.Seconds())
	}
}

// Failed counts a grant that was answered as failed. A code outside the table
// counts as CodeMountFailed: no failure is lost, and the set of series is fixed.
func (r *Recorder) Failed(code grant.Code) {
	c, ok := r.failed[code]
	if !ok {
		c = r.failed[grant.CodeMountFailed]
	}
	c.Inc()
}

// Revoked counts a grant that was taken away.
func (r *Recorder) Revoked() { r.revoked.Inc() }

// Released counts a Pod of which nothing is left on the node.
func (r *Recorder) Released() { r.released.Inc() }

// Leaked counts a mount that would not go.
func (r *Recorder) Leaked() { r.leakedTotal.Inc() }

// SetMounts says how many grants are mounted now.
func (r *Recorder) SetMounts(n int) { r.mounts.Set(float64(n)) }

// SetPods says how many Pods have a tree now.
func (r *Recorder) SetPods(n int) { r.pods.Set(float64(n)) }

// SetLeaked says how many mounts should be gone and are not.
func (r *Recorder) SetLeaked(n int) { r.leaked.Set(float64(n)) }

// Ready measures the time from the first sight of a request to the answer that all of
// it is there.
func (r *Recorder) Ready(took time.Duration) { r.ready.Observe(math.Max(0, took.Seconds())) }

// KernelRelease is the running kernel's release, "unknown" when it does not say.
func KernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}
