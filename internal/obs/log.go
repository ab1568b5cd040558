package obs

import (
	"errors"
	"io"
	"log/slog"
	"strings"
)

// NewLogger logs one JSON object a line to w, from level on: debug, info, warn
// or error, in any case.
func NewLogger(w io.Writer, level string) (*slog.Logger, error) {
	from, err := parseLevel(level)
	if err != nil {
		return nil, err
	}
	return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: from})), nil
}

// CheckLevel says what is wrong with a level that NewLogger would refuse.
func CheckLevel(level string) error {
	_, err := parseLevel(level)
	return err
}

func parseLevel(level string) (slog.Level, error) {
	for _, l := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
		if strings.EqualFold(level, l.String()) {
			return l, nil
		}
	}
	return 0, errors.New("want the log level debug, info, warn or error")
}
