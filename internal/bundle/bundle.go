// Package bundle collects texts about a fault into one file that may be passed on:
// without secrets, and with a page that says what is in it and what is not.
package bundle

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Bundle is what has been collected. Make one with New.
type Bundle struct {
	// Name is the folder that everything is in.
	Name    string
	made    time.Time
	redact  *Redactor
	files   []file
	missing []string
}

type file struct {
	name, what string
	body       []byte
}

// New is an empty bundle. Nothing gets into it but through redact.
func New(name string, made time.Time, redact *Redactor) *Bundle {
	return &Bundle{Name: name, made: made, redact: redact}
}

// Document adds v as JSON. what says what it is.
func (b *Bundle) Document(name, what string, v any) {
	body, err := b.redact.Document(v)
	if err != nil {
		b.Miss(name, err)
		return
	}
	b.files = append(b.files, file{name, what, body})
}

// Lines adds a log.
func (b *Bundle) Lines(name, what string, lines []string) {
	var body strings.Builder
	for _, l := range lines {
		body.WriteString(b.redact.Line(l) + "\n")
	}
	b.files = append(b.files, file{name, what, []byte(body.String())})
}

// Miss records what could not be read, and why.
func (b *Bundle) Miss(name string, why error) {
	b.missing = append(b.missing, name+": "+b.redact.Text(strings.ReplaceAll(why.Error(), "\n", "; ")))
}

// Missing is what could not be read, a line each.
func (b *Bundle) Missing() []string { return b.missing }

// Len is how many files there are, without README.txt.
func (b *Bundle) Len() int { return len(b.files) }

// readme says what is in the bundle.
func (b *Bundle) readme() []byte {
	var t strings.Builder
	fmt.Fprintf(&t, "%s, collected %s\n\nIn it:\n", b.Name, b.made.UTC().Format(time.RFC3339))
	for _, f := range b.files {
		fmt.Fprintf(&t, "  %-24s %s\n", f.name, f.what)
	}
	t.WriteString(`
Left out, or written as ` + Removed + `: the values of environment variables, commands and
arguments of containers, what their probes and hooks run, ask for and print,
annotations that are not the gateway's, names and folders of other Pods on the node,
what a URL has before "@" and after "?", and what looks like a password, a token or a
key. Those values are taken out of every file where they stand as a whole, or in
base64, and have six characters or more. Events and the containers' states lose each
single word of them, unless it is part of a name of the Pod's.
No Secret was read. It has names of Pods, nodes, folders and people's homes: look
through it before you pass it on.
`)
	if len(b.missing) > 0 {
		t.WriteString("\nCould not be read:\n")
		for _, m := range b.missing {
			t.WriteString("  " + m + "\n")
		}
	}
	return []byte(t.String())
}

// Write writes the bundle: a compressed archive where the name ends so, else a folder.
// Neither may exist already.
func (b *Bundle) Write(path string) (err error) {
	files := append([]file{{name: "README.txt", body: b.readme()}}, b.files...)
	if !strings.HasSuffix(path, ".tar.gz") && !strings.HasSuffix(path, ".tgz") {
		return writeFolder(path, files)
	}
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, out.Close()); err != nil {
			_ = os.Remove(path) // half an archive helps nobody
		}
	}()
	return b.archive(out, files)
}

func writeFolder(dir string, files []file) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	for _, f := range files {
		if err := os.WriteFile(filepath.Join(dir, f.name), f.body, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (b *Bundle) archive(w io.Writer, files []file) error {
	packed := gzip.NewWriter(w)
	archive := tar.NewWriter(packed)
	for _, f := range files {
		head := &tar.Header{Typeflag: tar.TypeReg, Name: b.Name + "/" + f.name, Mode: 0o600, Size: int64(len(f.body)), ModTime: b.made}
		if err := archive.WriteHeader(head); err != nil {
			return err
		}
		if _, err := archive.Write(f.body); err != nil {
			return err
		}
	}
	return errors.Join(archive.Close(), packed.Close())
}
