// Package plan decides what should stand in a Pod and what has to be done for
// it. It is pure: it reads no file, no clock and no mount table, so that every
// decision can be tested as a value.
package plan

import (
	"fmt"
	"slices"

	"github.com/datalayer/node-mounts/grant"
)

// Identity is what makes a grant the same grant: a change in any of it is a
// revocation followed by a grant. The kind is part of it although it is not
// hashed; uid, pid and hash are not.
type Identity struct {
	Kind      grant.Kind `json:"kind"`
	Source    string     `json:"source"`
	Mode      grant.Mode `json:"mode"`
	AllowExec bool       `json:"allow_exec"`
	Revision  string     `json:"revision,omitempty"`
	Secret    string     `json:"secret,omitempty"`
}

// Mount is one grant that passed every rule. Only Build makes one, so a path
// nobody has validated cannot be handed to a delivery.
type Mount struct {
	target   string
	identity Identity
	info     grant.KindInfo
}

// Target is the mount's name in the Pod's volume, one path segment.
func (m Mount) Target() string { return m.target }

// Identity is what the journal remembers m by.
func (m Mount) Identity() Identity { return m.identity }

// Source is what is mounted, in the form of m's kind.
func (m Mount) Source() string { return m.identity.Source }

// Kind is m's kind.
func (m Mount) Kind() grant.Kind { return m.identity.Kind }

// Delivery is how m is made.
func (m Mount) Delivery() grant.Delivery { return m.info.Delivery }

// Creates tells whether a missing source is made rather than refused.
func (m Mount) Creates() bool { return m.info.Creates }

// ReadOnly tells whether m refuses writes: by its mode or by its kind.
func (m Mount) ReadOnly() bool { return m.info.ReadOnly || m.identity.Mode != grant.ReadWrite }

// NoExec tells whether nothing in m may be executed.
func (m Mount) NoExec() bool { return !m.identity.AllowExec }

// Plan is what one grant annotation comes to under a policy.
type Plan struct {
	// Hash is echoed in the answer.
	Hash   string
	Mounts []Mount
	// Refused are the entries that can never be mounted as they are.
	Refused []grant.Refusal
	// Whole refuses the set: nothing new is mounted. It is about the set as it
	// is asked; see Steps for what it means for what stands.
	Whole *grant.Refusal
	// Unread: the annotation could not be read, so nobody knows what it no
	// longer asks for. What stands stays.
	Unread bool
}

// Build applies the policy to a decoded set.
func Build(set grant.Set, pol Policy) Plan {
	p := Plan{Hash: set.Hash, Refused: slices.Clone(set.Refused), Whole: set.Whole, Unread: set.Whole != nil}
	for _, m := range set.Mounts {
		mount, refusal := admit(m, pol)
		if refusal != nil {
			p.Refused = append(p.Refused, *refusal)
			continue
		}
		p.Mounts = append(p.Mounts, mount)
	}
	return p
}

// admit refuses a kind nobody serves before a Secret is looked at, so that a
// grant that cannot be applied leaves nothing behind suggesting that it was.
func admit(m grant.Mount, pol Policy) (Mount, *grant.Refusal) {
	refuse := func(code grant.Code, format string, args ...any) (Mount, *grant.Refusal) {
		return Mount{}, &grant.Refusal{Key: m.Target, Code: code, Message: fmt.Sprintf(format, args...)}
	}
	info, known := m.Kind.Info()
	switch {
	case !known:
		return refuse(grant.CodeUnsupportedKind, "no agent serves the kind %q", m.Kind)
	case !pol.Serves[m.Kind] && info.Unserved:
		return refuse(grant.CodeProcessUnsupported, "this release does not serve the kind %q", m.Kind)
	case !pol.Serves[m.Kind] && info.Delivery == grant.DeliveryProcess:
		return refuse(grant.CodeProcessUnsupported, "this agent runs no filesystem processes, which the kind %q needs", m.Kind)
	case !pol.Serves[m.Kind]:
		return refuse(grant.CodeUnsupportedKind, "this agent does not serve the kind %q", m.Kind)
	case m.Secret != "" && !pol.Credentials:
		return refuse(grant.CodeSecretRefused, "this agent may not read Secrets, and the grant names %q", m.Secret)
	}
	return Mount{
		target: m.Target,
		info:   info,
		identity: Identity{
			Kind: m.Kind, Source: m.Source, Mode: m.Mode, AllowExec: m.AllowExec,
			Revision: m.Revision, Secret: m.Secret,
		},
	}, nil
}

// Standing is a mount that the journal has for the Pod.
type Standing struct {
	Target   string
	Identity Identity
	// Sound: it was completely made, and nothing says that it is to go.
	Sound bool
}

// Steps are what leads from what stands to what is asked. Revocations come
// first, and are never held up by a cap or a refusal.
type Steps struct {
	Revoke []string // targets
	Grant  []Mount
	Keep   []Mount
}

// Diff compares what stands with the plan.
func Diff(standing []Standing, p Plan) Steps {
	var s Steps
	asked := make(map[string]Mount, len(p.Mounts))
	for _, m := range p.Mounts {
		asked[m.target] = m
	}
	kept := make(map[string]bool, len(standing))
	for _, st := range standing {
		m, ok := asked[st.Target]
		switch {
		case st.Sound && (ok && m.identity == st.Identity || p.Unread):
			kept[st.Target] = true
		default:
			s.Revoke = append(s.Revoke, st.Target)
		}
	}
	for _, m := range p.Mounts {
		if kept[m.target] {
			s.Keep = append(s.Keep, m)
		} else if p.Whole == nil {
			s.Grant = append(s.Grant, m)
		}
	}
	return s
}

// Cap refuses the plan as a whole where it asks for something new and would
// exceed a cap. others is how many mounts stand in the node's other Pods. A set
// that asks for nothing new is never refused: what stands is not taken away
// because a cap was lowered.
func (p Plan) Cap(steps Steps, others int, pol Policy) *grant.Refusal {
	n := len(steps.Keep) + len(steps.Grant)
	var msg string
	switch {
	case len(steps.Grant) == 0:
		return nil
	case n > pol.MaxPerPod:
		msg = fmt.Sprintf("the set asks for %d mounts; a Pod may have %d", n, pol.MaxPerPod)
	case others+n > pol.MaxPerNode:
		// Not how many there are: the answer would change with every other Pod.
		msg = fmt.Sprintf("the set asks for %d mounts, and with those of its other Pods this node would have more than %d", n, pol.MaxPerNode)
	default:
		return nil
	}
	return &grant.Refusal{Key: grant.WholeSet, Code: grant.CodeTooManyMounts, Message: msg}
}
