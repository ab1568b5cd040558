package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/datalayer/node-mounts/grant"
	"github.com/datalayer/node-mounts/internal/advice"
	"github.com/datalayer/node-mounts/internal/awscreds"
)

// maxDatasets bounds a file of Datasets: those of a large cluster have some MiB.
const maxDatasets = 64 << 20

// dataset is a Dataset of Datashim. What may be a key is in local alone.
type dataset struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name, Namespace string
		Labels          map[string]string
	} `json:"metadata"`
	Spec struct {
		Local  map[string]any  `json:"local"`
		Remote json.RawMessage `json:"remote"`
		Type   string          `json:"type"`
	} `json:"spec"`
	Items []json.RawMessage `json:"items"`
}

// name is how messages call it.
func (d dataset) name() string {
	if d.Metadata.Name == "" {
		return "a Dataset without a name"
	}
	if d.Metadata.Namespace == "" {
		return d.Metadata.Name
	}
	return d.Metadata.Namespace + "/" + d.Metadata.Name
}

// text is a value of local, "" where there is none: they are texts, and some write
// a boolean without quotes.
func (d dataset) text(key string) string {
	switch v := d.Spec.Local[key].(type) {
	case string:
		return strings.TrimSpace(v)
	case bool:
		return strconv.FormatBool(v)
	case json.Number:
		return v.String()
	}
	return ""
}

// truth reads a value as Datashim does: what is no boolean is false.
func (d dataset) truth(key string) bool {
	yes, err := strconv.ParseBool(d.text(key))
	return err == nil && yes
}

// readDatasets reads documents of JSON or YAML, and lists among them. Other objects
// are passed over, and told by their kind. Parsers repeat what they cannot read,
// which may be a key: of their errors only the line is told.
func readDatasets(text []byte) (found []dataset, passed []string, err error) {
	docs, err := asJSONDocuments(text)
	if err != nil {
		return nil, nil, err
	}
	for len(docs) > 0 {
		doc := docs[0]
		docs = docs[1:]
		var d dataset
		dec := json.NewDecoder(bytes.NewReader(doc))
		dec.UseNumber()
		if err := dec.Decode(&d); err != nil {
			return nil, nil, errors.New("it has a document that is no object of Kubernetes")
		}
		group, version, _ := strings.Cut(d.APIVersion, "/")
		ours := group == "datashim.io" || group == "com.ie.ibm.hpsys"
		switch {
		case strings.HasSuffix(d.Kind, "List") && (ours || d.APIVersion == "v1"):
			docs = append(slices.Clone(d.Items), docs...)
		case ours && version == "v1alpha1" && d.Kind == "Dataset":
			found = append(found, d)
		case ours && version == "v1alpha1" && d.Kind == "DatasetInternal": // Datashim's own copy
		default:
			passed = append(passed, fmt.Sprintf("%.40s %.80s", d.Kind, d.Metadata.Name))
		}
	}
	return found, passed, nil
}

func asJSONDocuments(text []byte) ([]json.RawMessage, error) {
	var docs []json.RawMessage
	dec := json.NewDecoder(bytes.NewReader(text))
	for {
		var doc json.RawMessage
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return docs, nil
		}
		if err != nil {
			break
		}
		docs = append(docs, doc)
	}
	docs = nil
	for i, doc := range documents(string(text)) {
		converted, err := yaml.YAMLToJSONStrict([]byte(doc))
		if err != nil {
			where := fmt.Sprintf("document %d", i+1)
			if m := regexp.MustCompile(`\bline (\d+)`).FindStringSubmatch(err.Error()); m != nil {
				where += ", line " + m[1] + " of it,"
			}
			return nil, fmt.Errorf("%s is neither JSON nor YAML", where)
		}
		docs = append(docs, converted)
	}
	return docs, nil
}

// imported is what becomes of a Dataset.
type imported struct {
	mount  grant.Mount
	secret *newSecret
	notes  []string // what is not carried over, and what to do
}

// newSecret is a Secret that takes the place of keys. It has none.
type newSecret struct {
	name string
	// region and endpoint are no secrets.
	region, endpoint string
	// from is the Secret that has the keys now.
	from struct{ namespace, name string }
}

// importDataset says what a Dataset becomes. prefix is put before the name of its
// Secret. The error says why it becomes nothing, and what to do.
func importDataset(d dataset, prefix string) (imported, error) {
	for what, value := range map[string]string{"name": d.Metadata.Name, "secret-name": d.text("secret-name")} {
		if problems := validation.IsDNS1123Subdomain(value); len(problems) > 0 && (what == "name" || value != "") {
			return imported{}, fmt.Errorf("its %s %.80q is no name of an object", what, value)
		}
	}
	for what, value := range map[string]string{"namespace": d.Metadata.Namespace, "secret-namespace": d.text("secret-namespace")} {
		if value != "" && namespaceProblem(value) != "" {
			return imported{}, fmt.Errorf("its %s %.80q is no name of one", what, value)
		}
	}
	kind := strings.ToUpper(d.text("type"))
	switch {
	case strings.EqualFold(d.Spec.Type, "ARCHIVE"):
		return imported{}, errors.New("an archive is no filesystem: unpack it into a bucket or into a folder of the shared claim, and grant that (cloud-storage, shared-folder)")
	case len(d.Spec.Remote) > 0 && len(d.Spec.Local) == 0:
		return imported{}, errors.New("an entry of a catalog is looked up by Datashim alone: look up where it leads to, and grant that bucket (cloud-storage)")
	case kind == "COS" || kind == "S3":
		return importBucket(d, prefix)
	case kind == "NFS":
		return importNFS(d)
	case kind == "HOST":
		return imported{}, errors.New("a folder of a node is not mounted: put its files into a folder of the shared claim, and grant that (shared-folder)")
	case kind == "H3":
		return imported{}, errors.New("H3 is not served: copy what is in it into a bucket or into a folder of the shared claim, and grant that (cloud-storage, shared-folder)")
	}
	return imported{}, fmt.Errorf("its type %.40q is none that Datashim has: it is one of COS, NFS, HOST, H3", d.text("type"))
}

func (i *imported) note(format string, args ...any) {
	i.notes = append(i.notes, fmt.Sprintf(format, args...))
}

// unknownTo notes what has no meaning here.
func (i *imported) unknownTo(d dataset, known ...string) {
	for _, key := range slices.Sorted(maps.Keys(d.Spec.Local)) {
		if !slices.Contains(append(known, "type", "readonly"), key) {
			i.note("%.40q is not carried over: look whether you need it", key)
		}
	}
}

func (i *imported) clean(d dataset, kind grant.Kind, source string) error {
	m := grant.Mount{Kind: kind, Source: source, Target: d.Metadata.Name, Mode: grant.ReadWrite, AllowExec: true}
	if d.truth("readonly") {
		m.Mode = grant.ReadOnly
	}
	if i.secret != nil {
		m.Secret = i.secret.name
	}
	var err error
	i.mount, err = grant.Clean(m)
	if refusal, ok := errors.AsType[*grant.Refusal](err); ok {
		return advice.With(errors.New(refusal.Message), remedy(refusal.Code))
	}
	return err
}

func importBucket(d dataset, prefix string) (imported, error) {
	var i imported
	if d.text("bucket") == "" {
		return i, errors.New("it names no bucket: grant by hand what it means (cloud-storage)")
	}
	endpoint, problem := endpointOf(d.text("endpoint"))
	if problem != "" {
		return i, errors.New("its endpoint " + problem)
	}
	if strings.HasPrefix(endpoint, "http://") {
		i.note("its endpoint is http://: nodes take https:// alone, unless their administrator allows the other")
	}
	i.secret = &newSecret{name: prefix + d.Metadata.Name, region: d.text("region"), endpoint: endpoint}
	if prefix == "" {
		i.secret.name += "-bucket" // its own name is that of the Secret which Datashim makes
	}
	if problems := validation.IsDNS1123Subdomain(i.secret.name); len(problems) > 0 {
		return i, fmt.Errorf("its name is too long for that of a Secret, %.300q", i.secret.name)
	}
	// Datashim writes keys that stand in the object into a Secret of its name.
	i.secret.from.name, i.secret.from.namespace = d.Metadata.Name, d.Metadata.Namespace
	inline := d.text("accessKeyID") != "" || d.text("secretAccessKey") != ""
	switch named := d.text("secret-name"); {
	case named != "":
		i.secret.from.name = named
		if ns := d.text("secret-namespace"); ns != "" {
			i.secret.from.namespace = ns
		}
		if inline {
			i.note("it has keys and a secret-name: Datashim reads the Secret, and so does the command; take the keys out of the object")
		}
	case inline:
		i.note("its keys stand in the object, for everybody who may read Datasets: make new ones, and take these back")
	default:
		i.note("it names no keys: put some into the Secret, a bucket is not read without")
	}
	if i.secret.region == "" && endpoint == "" {
		i.note("it has neither a region nor an endpoint: where the nodes have no region of their own, write it into the Secret")
	}
	folder := d.text("folder")
	if folder != "" && strings.Contains(strings.Trim(d.text("bucket"), "/"), "/") {
		i.note("it has a folder and a bucket with one: the grant is of the one in the other; versions of Datashim differ there")
	}
	if d.truth("provision") {
		i.note("provision: the bucket is not made: make it before it is granted")
	}
	if remove, err := strconv.ParseBool(d.Metadata.Labels["remove-on-delete"]); err == nil && remove || d.truth("removeOnDelete") {
		i.note("remove-on-delete: nothing of a bucket is deleted with a grant: delete it when nobody needs it")
	}
	if d.Metadata.Labels["cache.plugin"] != "" {
		i.note("cache.plugin: no cache of Datashim is used: each mount has one of its node's disk, where the nodes are set up so")
	}
	i.unknownTo(d, "bucket", "endpoint", "region", "folder", "accessKeyID", "secretAccessKey", "secret-name", "secret-namespace", "provision", "removeOnDelete")
	return i, i.clean(d, grant.KindCloudStorage, d.text("bucket")+"/"+folder)
}

// endpointOf is the endpoint as a Secret may have it, "" for AWS's own. problem never
// repeats it.
func endpointOf(text string) (endpoint, problem string) {
	if text == "" {
		return "", ""
	}
	if !strings.Contains(text, "://") {
		text = "https://" + text
	}
	u, err := url.Parse(text)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return "", "is no URL: write it as https://s3.example.org"
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return "", "has credentials, a query or a fragment in it: write the URL without"
	}
	return strings.TrimRight(text, "/"), ""
}

func importNFS(d dataset) (imported, error) {
	var i imported
	server, share := d.text("server"), d.text("share")
	if server == "" || share == "" {
		return i, errors.New("it lacks the server or the share: grant by hand what it means (nfs)")
	}
	if a, err := netip.ParseAddr(server); err == nil && a.Is6() {
		server = "[" + server + "]"
	}
	if d.truth("createDirPVC") {
		i.note("createDirPVC: no folder is made in the export: the grant is of the export itself; write the folder's path into its source")
	}
	i.unknownTo(d, "server", "share", "createDirPVC")
	return i, i.clean(d, grant.KindNFS, server+":"+share)
}

// manifest is the Secret for a Pod, without the keys.
func (s newSecret) manifest(namespace, pod, uid string) map[string]any {
	meta := map[string]any{
		"name": s.name,
		"ownerReferences": []map[string]any{{
			"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid,
		}},
	}
	if namespace != "" {
		meta["namespace"] = namespace
	}
	values := map[string]string{awscreds.KeyAccessKeyID: "", awscreds.KeySecretAccessKey: ""}
	for key, value := range map[string]string{awscreds.KeyRegion: s.region, awscreds.KeyEndpointURL: s.endpoint} {
		if value != "" {
			values[key] = value
		}
	}
	return map[string]any{"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "metadata": meta, "stringData": values}
}

// fill is the command that puts the keys into it, with the flags for its place. They
// go from one program to the other and are in no argument.
func (s newSecret) fill(where string) string {
	of := func(key string) string {
		return "$(kubectl get secret " + s.from.name + in(s.from.namespace) + " -o jsonpath='{.data." + key + "}')"
	}
	return "kubectl patch secret " + s.name + where + " --patch-file /dev/stdin <<EOF\n" +
		`{"data": {"` + awscreds.KeyAccessKeyID + `": "` + of("accessKeyID") + `", "` + awscreds.KeySecretAccessKey + `": "` + of("secretAccessKey") + `"}}` + "\nEOF"
}

func in(namespace string) string {
	if namespace == "" {
		return ""
	}
	return " -n " + namespace
}
