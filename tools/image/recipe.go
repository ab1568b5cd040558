package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// recipe is the last stage of a Dockerfile.
type recipe struct {
	from  string
	steps []step

	env        []string // NAME=VALUE, in order
	labels     map[string]string
	entrypoint []string
	cmd        []string
	user       string
	workdir    string
}

// step is an instruction that changes files: RUN or COPY.
type step struct {
	line int
	text string // as it stands in the Dockerfile, for the image's history

	run string // RUN: the command, without its --mount flags

	stage    string // COPY --from
	sources  []string
	target   string
	mode     int64 // COPY --chmod, where chmod is set
	chmod    bool
	uid, gid int // COPY --chown
}

// parse reads the instructions that the images of this project use. What it does
// not know it refuses: an instruction that is passed over would make an image
// that differs from Docker's, and nobody would see it.
func parse(text string, given map[string]string) (recipe, error) {
	lines := logical(text)
	last := -1
	for i, line := range lines {
		if word, _, _ := strings.Cut(line, " "); strings.EqualFold(word, "FROM") {
			last = i
		}
	}
	if last < 0 {
		return recipe{}, fmt.Errorf("1: no FROM")
	}
	p := parser{given: given, vars: map[string]string{}}
	for i, line := range lines[last:] {
		if line == "" {
			continue
		}
		if err := p.instruction(last+i+1, line); err != nil {
			return recipe{}, fmt.Errorf("%d: %w", last+i+1, err)
		}
	}
	return p.r, nil
}

// logical returns the lines with continuations joined into the first of each, the
// others and the comments empty: the index is still the number of the line.
func logical(text string) []string {
	lines := strings.Split(text, "\n")
	open := -1
	for i, line := range lines {
		line = strings.TrimSpace(line)
		lines[i] = ""
		if strings.HasPrefix(line, "#") {
			continue
		}
		rest, more := strings.CutSuffix(line, `\`)
		if open < 0 {
			open = i
		}
		lines[open] = strings.TrimSpace(lines[open] + " " + strings.TrimSpace(rest))
		if !more {
			open = -1
		}
	}
	return lines
}

type parser struct {
	given map[string]string // build arguments
	vars  map[string]string // those the stage has declared, and its ENV
	r     recipe
}

func (p *parser) instruction(number int, line string) error {
	word, rest, _ := strings.Cut(line, " ")
	rest = strings.TrimSpace(rest)
	word = strings.ToUpper(word)
	if word == "FROM" {
		return p.from(rest)
	}
	if word == "ARG" {
		return p.arg(rest)
	}
	s := step{line: number, text: line}
	switch word {
	case "RUN":
		s.run = command(rest)
		p.r.steps = append(p.r.steps, s)
		return nil
	case "COPY":
		return p.copy(s, rest)
	case "ENTRYPOINT":
		return list(rest, &p.r.entrypoint)
	case "CMD":
		return list(rest, &p.r.cmd)
	}
	value, err := p.expand(rest)
	if err != nil {
		return err
	}
	switch word {
	case "ENV":
		return p.env(value)
	case "LABEL":
		return p.label(value)
	case "USER":
		p.r.user = value
	case "WORKDIR":
		if !strings.HasPrefix(value, "/") {
			return fmt.Errorf("WORKDIR %s is not absolute", value)
		}
		p.r.workdir = value
	default:
		return fmt.Errorf("the instruction %s is not understood by this builder", word)
	}
	return nil
}

func (p *parser) from(rest string) error {
	words := strings.Fields(rest)
	for len(words) > 0 && strings.HasPrefix(words[0], "--") {
		words = words[1:]
	}
	if len(words) == 0 {
		return fmt.Errorf("FROM names no image")
	}
	p.r = recipe{from: words[0], labels: map[string]string{}}
	return nil
}

func (p *parser) arg(rest string) error {
	name, value, has := strings.Cut(rest, "=")
	given, ok := p.given[name]
	switch {
	case ok:
		p.vars[name] = given
	case has:
		p.vars[name] = value
	default:
		p.vars[name] = ""
	}
	return nil
}

var variable = regexp.MustCompile(`\$(\{[A-Za-z0-9_]+\}|[A-Za-z0-9_]+|.|$)`)

func (p *parser) expand(s string) (string, error) {
	var bad error
	s = variable.ReplaceAllStringFunc(s, func(found string) string {
		name := strings.Trim(found, "${}")
		value, ok := p.vars[name]
		if !ok {
			bad = fmt.Errorf("%s is not declared by ARG or ENV in this stage", found)
		}
		return value
	})
	return s, bad
}

// pair reads NAME=VALUE or NAME="VALUE"; one to a line.
func pair(s string) (name, value string, err error) {
	name, value, ok := strings.Cut(s, "=")
	if ok && strings.HasPrefix(value, `"`) {
		value, err = strconv.Unquote(value)
		return name, value, err
	}
	if !ok || name == "" || strings.ContainsAny(s, " \t\"'\\") {
		return "", "", fmt.Errorf("%q is not one NAME=VALUE", s)
	}
	return name, value, nil
}

func (p *parser) env(s string) error {
	name, value, err := pair(s)
	if err != nil {
		return err
	}
	p.vars[name] = value
	p.r.env = append(p.r.env, name+"="+value)
	return nil
}

func (p *parser) label(s string) error {
	name, value, err := pair(s)
	if err != nil {
		return err
	}
	p.r.labels[name] = value
	return nil
}

// list reads the JSON form. The other one runs a shell, which is one process more
// and does not pass signals on.
func list(s string, to *[]string) error {
	if err := json.Unmarshal([]byte(s), to); err != nil {
		return fmt.Errorf("%s is not a JSON list of strings: %w", s, err)
	}
	return nil
}

// command is what RUN runs. Mounts are there while it runs and leave no trace.
func command(rest string) string {
	words := strings.Fields(rest)
	for len(words) > 0 && strings.HasPrefix(words[0], "--mount=") {
		words = words[1:]
	}
	return strings.Join(words, " ")
}

func (p *parser) copy(s step, rest string) error {
	rest, err := p.expand(rest)
	if err != nil {
		return err
	}
	words := strings.Fields(rest)
	for len(words) > 0 && strings.HasPrefix(words[0], "--") {
		if err := s.option(words[0]); err != nil {
			return err
		}
		words = words[1:]
	}
	if len(words) < 2 || strings.HasPrefix(words[0], "[") {
		return fmt.Errorf("COPY needs sources and a target")
	}
	last := len(words) - 1
	s.sources, s.target = words[:last], words[last]
	if !strings.HasPrefix(s.target, "/") {
		return fmt.Errorf("the target of COPY %s is not absolute", s.target)
	}
	if len(s.sources) > 1 && !strings.HasSuffix(s.target, "/") {
		return fmt.Errorf("COPY of several sources needs a target that ends in /")
	}
	p.r.steps = append(p.r.steps, s)
	return nil
}

func (s *step) option(word string) error {
	name, value, _ := strings.Cut(word, "=")
	switch name {
	case "--from":
		s.stage = value
	case "--chmod":
		mode, err := strconv.ParseUint(value, 8, 12)
		if err != nil {
			return fmt.Errorf("COPY %s: the mode is not octal", word)
		}
		s.chmod, s.mode = true, int64(mode)
	case "--chown":
		if _, err := fmt.Sscanf(value, "%d:%d", &s.uid, &s.gid); err != nil || value != fmt.Sprintf("%d:%d", s.uid, s.gid) {
			return fmt.Errorf("COPY %s: want numbers, UID:GID", word)
		}
	default:
		return fmt.Errorf("COPY %s is not understood by this builder", word)
	}
	return nil
}
