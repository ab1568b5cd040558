package install

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/loader/archive"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/strvals"

	"github.com/datalayer/node-mounts/internal/advice"
)

// Settings are where values come from; what is later in it wins.
type Settings struct {
	Environ []string
	Files   []string  // YAML; "-" is In
	In      io.Reader // for a file "-"
	Set     []string  // a.b=c, as Helm's --set
	Texts   []string  // a.b=c, as Helm's --set-string
	Claim   string    // turns the gateway on, with this claim
}

// Values are the chart's values that the settings say, and warnings about the
// environment.
func (s Settings) Values() (values map[string]any, warnings []string, err error) {
	values, warnings, err = FromEnvironment(s.Environ)
	if err != nil {
		return nil, nil, err
	}
	for _, name := range s.Files {
		text, err := s.read(name)
		if err != nil {
			return nil, nil, advice.Usage(fmt.Errorf("--values: %w", err), "give a file of YAML, or - for standard input")
		}
		more, err := loader.LoadValues(bytes.NewReader(text))
		if err != nil {
			return nil, nil, advice.Usage(fmt.Errorf("--values %s: %w", name, err), "it is YAML, as the chart's values.yaml")
		}
		values = loader.MergeMaps(values, more)
	}
	for _, given := range []struct {
		flag   string
		values []string
		parse  func(string, map[string]any) error
	}{{"--set", s.Set, strvals.ParseInto}, {"--set-string", s.Texts, strvals.ParseIntoString}} {
		for _, one := range given.values {
			if err := given.parse(one, values); err != nil {
				return nil, nil, advice.Usage(fmt.Errorf("%s %.80q: %w", given.flag, one, err), "write it as name.of.value=text")
			}
		}
	}
	if s.Claim != "" {
		set(values, claimValue, s.Claim)
		set(values, enabledValue, true)
	}
	return values, warnings, nil
}

func (s Settings) read(name string) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(s.In)
	}
	return os.ReadFile(name)
}

// load reads a chart.
func load(from fs.FS) (*chart.Chart, error) {
	var files []*archive.BufferedFile
	err := fs.WalkDir(from, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := fs.ReadFile(from, path)
		files = append(files, &archive.BufferedFile{Name: path, Data: text})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading the chart: %w", err)
	}
	c, err := loader.LoadFiles(files)
	if err == nil && c.Metadata == nil {
		err = errors.New("there is no Chart.yaml")
	}
	if err == nil {
		err = c.Validate()
	}
	if err != nil {
		return nil, fmt.Errorf("reading the chart: %w", err)
	}
	return c, nil
}

// sound refuses values with which nothing would run or nothing could be mounted.
func sound(c *chart.Chart, values map[string]any) (common map[string]any, err error) {
	all, err := util.CoalesceValues(c, values)
	if err != nil {
		return nil, advice.Usage(err, "check --set and --values")
	}
	if err := util.ValidateAgainstSchema(c, all); err != nil {
		return nil, advice.Usage(schemaSays(err), cmp.Or(meant(c.Schema, values), "check --set, --values and the variables: the chart's README lists all values"))
	}
	on, _ := look(all, enabledValue).(bool)
	claim, _ := look(all, claimValue).(string)
	only, stated := look(all, gatewayOnlyValue).(bool)
	switch {
	case !on && (only || !stated):
		return nil, advice.Usage(errors.New("there is nothing to install: the gateway is off"),
			"give --claim NAME, or set "+gatewayVariable+"=true and "+claimVariable)
	case on && claim == "":
		return nil, advice.Usage(errors.New("the gateway has no claim: it would have nothing to mount"),
			"give --claim NAME, or set "+claimVariable)
	}
	return all, nil
}
