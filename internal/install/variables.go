package install

import (
	"fmt"
	"slices"
	"strings"

	"github.com/datalayer/node-mounts/internal/advice"
	"github.com/datalayer/node-mounts/internal/spelling"
	"github.com/datalayer/node-mounts/internal/verify"
)

// Variable is an environment variable that sets a value of the chart.
type Variable struct {
	Name string
	// Value is where in the chart's values it goes; "" is nowhere.
	Value string
	// Switch: it is true, false, 1 or 0.
	Switch bool
	What   string
}

const (
	variablePrefix   = "DATALAYER_NODE_MOUNT"
	enabledVariable  = "DATALAYER_NODE_MOUNTS_ENABLED"
	gatewayVariable  = verify.EnabledVariable
	claimVariable    = "DATALAYER_SHARED_FS_VOLUME_CLAIM_NAME"
	enabledValue     = "nodeMountGateway.enabled"
	claimValue       = "nodeMountGateway.sharedFilesystemClaim"
	namespaceValue   = "nodeMountGateway.namespace"
	gatewayOnlyValue = "driver.gatewayOnly"
)

// Variables is the table of environment variables.
func Variables() []Variable {
	return []Variable{
		{enabledVariable, "", true, "false refuses to install anything"},
		{gatewayVariable, enabledValue, true, "run the gateway on the nodes"},
		{claimVariable, claimValue, false, "the claim with the folders to grant; the gateway needs it"},
		{"DATALAYER_NODE_MOUNT_GATEWAY_CREDENTIALS", "nodeMountGateway.credentials", true, "let the agents read Secrets that grants name"},
		{"DATALAYER_NODE_MOUNT_GATEWAY_BUCKETS", "nodeMountGateway.buckets", true, "serve cloud-storage"},
		{"DATALAYER_NODE_MOUNT_GATEWAY_LOCAL_BRIDGES", "nodeMountGateway.localBridges", true, "serve local-bridge, which this release refuses"},
		{"DATALAYER_NODE_MOUNT_GATEWAY_REPOSITORIES", "nodeMountGateway.repositories", true, "serve git"},
	}
}

// FromEnvironment makes chart values of the variables in an environment, whose
// entries are NAME=VALUE. An empty variable is as good as none. Each warning is a
// sentence about a variable that looks like one of ours and means nothing.
func FromEnvironment(environ []string) (values map[string]any, warnings []string, err error) {
	values = map[string]any{}
	known := map[string]Variable{}
	for _, v := range Variables() {
		known[v.Name] = v
	}
	for _, entry := range environ {
		name, text, _ := strings.Cut(entry, "=")
		v, ok := known[name]
		if !ok {
			if strings.HasPrefix(name, variablePrefix) {
				warnings = append(warnings, unknownVariable(name))
			}
			continue
		}
		if text == "" {
			continue
		}
		value, err := v.read(text)
		if err != nil {
			return nil, nil, err
		}
		if v.Value != "" {
			set(values, v.Value, value)
		}
	}
	slices.Sort(warnings)
	return values, warnings, nil
}

func (v Variable) read(text string) (any, error) {
	if !v.Switch {
		return text, nil
	}
	on := text == "true" || text == "1"
	switch {
	case !on && text != "false" && text != "0":
		return nil, advice.Usage(fmt.Errorf("%s is %.80q", v.Name, text), "it is true, false, 1 or 0: "+v.What)
	case v.Name == enabledVariable && !on:
		return nil, advice.Usage(fmt.Errorf("%s is %s", v.Name, text), "unset it to install; `node-mounts uninstall` takes away what is installed")
	}
	return on, nil
}

// farthest is how many letters apart two names may be and still be taken for the
// same one, mistyped.
const farthest = 5

func unknownVariable(name string) string {
	var known []string
	for _, v := range Variables() {
		known = append(known, v.Name)
	}
	nearest := spelling.Nearest(name, known, farthest)
	if nearest == "" {
		return name + " is set and not read: `--set` sets what has no variable"
	}
	return fmt.Sprintf("%s is set and not read: is %s meant?", name, nearest)
}

// set puts a value at a path with dots.
func set(values map[string]any, path string, value any) {
	for {
		first, rest, deeper := strings.Cut(path, ".")
		if !deeper {
			values[first] = value
			return
		}
		next, ok := values[first].(map[string]any)
		if !ok {
			next = map[string]any{}
			values[first] = next
		}
		values, path = next, rest
	}
}

// look finds what is at a path with dots, nil when there is nothing.
func look(values map[string]any, path string) any {
	for {
		first, rest, deeper := strings.Cut(path, ".")
		if !deeper {
			return values[first]
		}
		next, ok := values[first].(map[string]any)
		if !ok {
			return nil
		}
		values, path = next, rest
	}
}
