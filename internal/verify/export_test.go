package verify

// Scripts are what the probe runs inside, for the container that tests play.
type Scripts struct{ Write, Read, Spoil, Remove, Owner, Table, End string }

// ProbeScripts returns them.
func ProbeScripts() Scripts {
	return Scripts{writeScript, readScript, spoilScript, removeScript, ownerScript, tableScript, endScript}
}
