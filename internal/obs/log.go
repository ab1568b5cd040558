package obs

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// NewLogger logs one JSON object a line to w, from level on: debug, info, warn
// or error, in any case.
func NewLogger(w io.Writer, level string) (*slog.Logger, error) {
	var from slog.Level
	switch strings.ToLower(level) {
	case "debug":
		from = slog.LevelDebug
	case "info":
		from = slog.LevelInfo
	case "warn":
		from = slog.LevelWarn
	case "error":
		from = slog.LevelError
	default:
		return nil, fmt.Errorf("log level %q: use debug, info, warn or error", level)
	}
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: from})), nil
}
