package main

import (
	"fmt"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/rclone/rclone/lib/encoder"
)

// Limits of a name and of a key, in bytes.
const (
	longestName = 255
	longestKey  = 1024
)

// A name in a folder is a segment of a key, byte for byte. rclone's packages write some
// characters differently among themselves, and undo it in the cache directory and where
// they ask the server: standardName and keyName are the two sides of that.

// standardName is rclone's form of a name that the kernel has given.
func (b *bucket) standardName(name string) (string, syscall.Errno) {
	switch {
	case len(name) > longestName:
		return "", syscall.ENAMETOOLONG
	case !isName(name) || !b.carries(name):
		return "", syscall.EILSEQ
	}
	return encoder.Standard.Encode(name), 0
}

// listed is the name of what rclone lists, unless it cannot be one.
func (b *bucket) listed(standard string) (name string, ok bool) {
	name = keyName(standard)
	return name, isName(name) && b.carries(name)
}

// carries says whether the server can list a key: where it does not encode keys, they
// hold what XML can hold, and it writes U+FFFD in place of the rest.
func (b *bucket) carries(key string) bool {
	return b.encodesKeys || !strings.ContainsFunc(key, func(r rune) bool {
		return r < ' ' && r != '\t' && r != '\n' && r != '\r' || r >= utf8.RuneError && r <= '\uffff'
	})
}

// standardPath is rclone's form of a prefix.
func standardPath(key string) string { return encoder.EncodeRaw.ToStandardPath(key) }

// keyName is the name of rclone's form of it, keyPath the same of a path.
func keyName(name string) string { return encoder.Standard.Decode(name) }
func keyPath(name string) string { return encoder.EncodeRaw.FromStandardPath(name) }

// isName says whether a segment of a key can be a name in a folder, and a name a
// segment of a key.
func isName(segment string) bool {
	return segment != "" && segment != "." && segment != ".." && len(segment) <= longestName &&
		!strings.ContainsAny(segment, "/\x00") && utf8.ValidString(segment)
}

// checkPrefix is for a prefix without slashes around it.
func checkPrefix(prefix string) error {
	if prefix == "" {
		return nil
	}
	for segment := range strings.SplitSeq(prefix, "/") {
		if !isName(segment) {
			return &exitError{exitBucketWrong, fmt.Sprintf("the prefix %.64q has a segment that no folder can be: empty, \".\", \"..\", longer than %d bytes, or no UTF-8", prefix, longestName)}
		}
	}
	if len(prefix) >= longestKey {
		return &exitError{exitBucketWrong, fmt.Sprintf("the prefix is longer than a key can be: it has %d bytes, a key %d", len(prefix), longestKey)}
	}
	return nil
}
