package obs

import "runtime/debug"

// Version is the program's: the module's, or the commit's where the build knows no
// tag.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
