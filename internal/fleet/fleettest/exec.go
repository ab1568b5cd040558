package fleettest

import (
	"bufio"
	"crypto/sha1" //nolint:gosec // the WebSocket handshake is defined with it
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Result is what a command in a container came to.
type Result struct {
	Stdout, Stderr string
	// Code is its exit status.
	Code int
	// Hangs: it does not end, until whoever asked goes.
	Hangs bool
}

// The channels of a command's WebSocket, by the first byte of each message
// (v5.channel.k8s.io).
const (
	stdoutChannel = 1
	stderrChannel = 2
	statusChannel = 3
	protocol      = "v5.channel.k8s.io"
)

// Exec answers a request to run a command in a container as an API server does, over
// a WebSocket. run is told the path of the request, the container and the command.
func Exec(w http.ResponseWriter, r *http.Request, run func(path, container string, command []string) Result) {
	offered := strings.Split(strings.Join(r.Header.Values("Sec-Websocket-Protocol"), ","), ",")
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") || !slices.ContainsFunc(offered, func(p string) bool { return strings.TrimSpace(p) == protocol }) {
		http.Error(w, "unable to upgrade: WebSockets with "+protocol+" alone are served", http.StatusBadRequest)
		return
	}
	conn, both, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	defer func() { _ = conn.Close() }()
	const magic = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11" // RFC 6455, section 1.3
	key := sha1.Sum([]byte(r.Header.Get("Sec-Websocket-Key") + magic))
	fmt.Fprintf(both, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: %s\r\nSec-WebSocket-Protocol: %s\r\n\r\n",
		base64.StdEncoding.EncodeToString(key[:]), protocol)
	query := r.URL.Query()
	result := run(r.URL.Path, query.Get("container"), query["command"])
	if result.Hangs {
		_ = both.Flush()
		for buf := make([]byte, 512); err == nil; {
			_, err = both.Read(buf) // until the other end closes it
		}
		return
	}
	for _, part := range []struct {
		channel byte
		text    string
	}{{stdoutChannel, result.Stdout}, {stderrChannel, result.Stderr}, {statusChannel, status(result.Code)}} {
		// In pieces, as a container's output arrives.
		for text := part.text; text != ""; {
			n := min(len(text), 32<<10)
			frame(both.Writer, 0x2, append([]byte{part.channel}, text[:n]...))
			text = text[n:]
		}
	}
	frame(both.Writer, 0x8, []byte{0x03, 0xe8}) // close, 1000
	_ = both.Flush()                            // an asker that went away needs no answer
}

// status is how a command's end is told: v1.Status, with the exit code as a cause.
func status(code int) string {
	s := metav1.Status{Status: metav1.StatusSuccess}
	if code != 0 {
		s = metav1.Status{
			Status: metav1.StatusFailure, Reason: "NonZeroExitCode", Message: fmt.Sprintf("command terminated with non-zero exit code: %d", code),
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: "ExitCode", Message: fmt.Sprint(code)}}},
		}
	}
	b, err := json.Marshal(s)
	if err != nil {
		return ""
	}
	return string(b)
}

// frame writes one whole message (RFC 6455, section 5.2). A server masks nothing.
func frame(w *bufio.Writer, opcode byte, payload []byte) {
	head := []byte{0x80 | opcode}
	switch n := len(payload); {
	case n < 126:
		head = append(head, byte(n))
	case n <= 0xffff:
		head = binary.BigEndian.AppendUint16(append(head, 126), uint16(n))
	default:
		head = binary.BigEndian.AppendUint64(append(head, 127), uint64(n))
	}
	_, _ = w.Write(append(head, payload...)) // Flush tells
}
