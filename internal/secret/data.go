package secret

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"slices"
)

// redacted is all that any print of a Data shows.
const redacted = "[redacted]"

// Data are the values of one Secret. It shows them to Value alone: every way of
// printing it, by whatever verb, encoder or logger, prints "[redacted]".
//
// The values are in a closure because fmt calls no methods for some verbs and for
// unexported fields of other structs: it would print a map, and what a pointer
// leads to; of a function it has only the address.
type Data struct {
	held func() map[string][]byte
}

var (
	_ fmt.Formatter  = Data{}
	_ fmt.GoStringer = Data{}
	_ slog.LogValuer = Data{}
)

// NewData copies what it is given.
func NewData(from map[string][]byte) Data {
	values := make(map[string][]byte, len(from))
	for k, v := range from {
		values[k] = slices.Clone(v)
	}
	return Data{held: func() map[string][]byte { return values }}
}

func (d Data) all() map[string][]byte {
	if d.held == nil {
		return nil
	}
	return d.held()
}

// Value is what the Secret has under key, and whether it has anything: an empty
// value is none. The caller owns the returned bytes, and keeps them out of logs.
func (d Data) Value(key string) ([]byte, bool) {
	v := d.all()[key]
	return slices.Clone(v), len(v) > 0
}

// Equal tells whether o has the same values.
func (d Data) Equal(o Data) bool {
	others := o.all()
	if len(d.all()) != len(others) {
		return false
	}
	for k, v := range d.all() {
		other, ok := others[k]
		if !ok || !bytes.Equal(v, other) {
			return false
		}
	}
	return true
}

// Format implements fmt.Formatter, for every verb and flag.
func (Data) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, redacted) }

// String implements fmt.Stringer.
func (Data) String() string { return redacted }

// GoString implements fmt.GoStringer.
func (Data) GoString() string { return redacted }

// LogValue implements slog.LogValuer.
func (Data) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText implements encoding.TextMarshaler, and with it JSON and YAML.
func (Data) MarshalText() ([]byte, error) { return []byte(redacted), nil }
