package verify

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// questions are all that the rows about access ask.
func (f Facts) questions() []Question {
	var all []Question
	for _, a := range f.agentAccounts() {
		all = append(all, podQuestions(a, f.served())...)
		all = append(all, secretQuestions(a, f.served())...)
	}
	for _, a := range f.runtimeAccounts() {
		all = append(all, grantQuestions(a)...)
	}
	return all
}

// podQuestions are what the agent needs.
func podQuestions(a Account, served []string) []Question {
	var all []Question
	for _, ns := range served {
		for _, verb := range []string{"get", "list", "watch", "patch"} {
			all = append(all, Question{Account: a, Verb: verb, Resource: "pods", In: ns})
		}
	}
	return all
}

// grantQuestions are the ways to write an annotation on a Pod. The API lets a
// writer of pods/status change annotations too, and a Pod can be created with one.
func grantQuestions(a Account) []Question {
	var all []Question
	for _, verb := range []string{"patch", "update"} {
		for _, sub := range []string{"", "status"} {
			all = append(all, Question{Account: a, Verb: verb, Resource: "pods", Subresource: sub, In: a.Namespace})
		}
	}
	return append(all, Question{Account: a, Verb: "create", Resource: "pods", In: a.Namespace})
}

// secretQuestions are what the agent may need where it serves, then what it must
// not have.
func secretQuestions(a Account, served []string) []Question {
	var all []Question
	ask := func(verb, ns string) {
		q := Question{Account: a, Verb: verb, Resource: "secrets", In: ns}
		if !slices.Contains(all, q) {
			all = append(all, q)
		}
	}
	for _, ns := range served {
		for _, verb := range []string{"get", "list", "watch"} {
			ask(verb, ns)
		}
	}
	for _, ns := range elsewhere(a, served) {
		ask("get", ns)
		ask("list", ns)
	}
	return all
}

// elsewhere are namespaces that stand for all that the agent does not serve; "" is
// every one.
func elsewhere(a Account, served []string) []string {
	if slices.Contains(served, "") {
		return nil
	}
	var all []string
	for _, ns := range []string{"", a.Namespace, "kube-system", "default"} {
		if !slices.Contains(served, ns) && !slices.Contains(all, ns) {
			all = append(all, ns)
		}
	}
	return all
}

// allowed are the questions answered with yes. An answer that is missing is an
// error: it is never taken for a no.
func (f Facts) allowed(questions []Question) ([]Question, error) {
	var yes []Question
	for _, q := range questions {
		answer, asked := f.May[q]
		switch {
		case !asked:
			return nil, fmt.Errorf("whether %s may %s was not asked", q.Account, q)
		case answer.Err != nil:
			return nil, answer.Err
		case answer.Value:
			yes = append(yes, q)
		}
	}
	return yes, nil
}

func (q Question) String() string {
	what := q.Resource
	if q.Subresource != "" {
		what += "/" + q.Subresource
	}
	where := "in " + q.In
	if q.In == "" {
		where = "in every namespace"
	}
	return q.Verb + " " + what + " " + where
}

const rights = "what accounts may do (create on subjectaccessreviews)"

func mayPatch(f Facts) []Result {
	accounts := f.agentAccounts()
	if len(accounts) == 0 {
		return one(Skip, "there is no agent whose account could be asked for")
	}
	var missing []string
	for _, a := range accounts {
		questions := podQuestions(a, f.served())
		yes, err := f.allowed(questions)
		if err != nil {
			return unread(rights, err)
		}
		for _, q := range questions {
			if !slices.Contains(yes, q) {
				missing = append(missing, fmt.Sprintf("%s may not %s", a, q))
			}
		}
	}
	if len(missing) > 0 {
		return one(Fail, some(missing, ", "))
	}
	return one(OK, "yes")
}

func secretAccess(f Facts) []Result {
	accounts, docs := f.agentAccounts(), f.documents()
	switch {
	case len(accounts) == 0:
		return one(Skip, "there is no agent whose account could be asked for")
	case len(docs) == 0:
		return one(Skip, "no agent tells whether it reads Secrets")
	}
	credentials := docs[0].Credentials
	for _, d := range docs {
		if d.Credentials != credentials {
			return one(Fail, fmt.Sprintf("%s and %s differ in whether they read Secrets", docs[0].Node, d.Node))
		}
	}
	served := f.served()
	var wrong []string
	for _, a := range accounts {
		yes, err := f.allowed(secretQuestions(a, served))
		if err != nil {
			return unread(rights, err)
		}
		for _, ns := range served {
			q := Question{Account: a, Verb: "get", Resource: "secrets", In: ns}
			if credentials && !slices.Contains(yes, q) {
				wrong = append(wrong, "credentials are on and "+a.String()+" may not "+q.String())
			}
		}
		for _, q := range yes {
			if q.Verb != "get" || !credentials || !slices.Contains(served, q.In) {
				wrong = append(wrong, a.String()+" may "+q.String())
			}
		}
	}
	state := map[bool]string{true: "credentials on", false: "credentials off"}[credentials]
	if len(wrong) > 0 {
		return one(Fail, some(wrong, ", ")+"; "+state)
	}
	return one(OK, fmt.Sprintf("can-i get secrets: %s; %s", map[bool]string{true: "yes", false: "no"}[credentials], state))
}

func mayNotGrant(f Facts) []Result {
	if f.Pods.Err != nil {
		return unread("the Pods of the runtimes", f.Pods.Err)
	}
	var all []Result
	for _, a := range f.runtimeAccounts() {
		if r := f.accountGrants(a); !slices.Contains(all, r) {
			all = append(all, r)
		}
	}
	slices.SortStableFunc(all, func(a, b Result) int { return strings.Compare(string(a.Status), string(b.Status)) })
	return all
}

// accountGrants judges one account of runtimes: what it may, then who has its
// token.
func (f Facts) accountGrants(a Account) Result {
	yes, err := f.allowed(grantQuestions(a))
	if err != nil {
		return unread(rights, err)[0]
	}
	if len(yes) == 0 {
		return Result{Status: OK, Detail: a.Name + " can patch pods: no"}
	}
	what := fmt.Sprintf("%s can %s pods: yes; ", a.Name, verbs(yes))
	var within []string
	pods, automount := 0, f.Automount[a]
	for _, p := range f.Pods.Value {
		if accountOf(p) != a {
			continue
		}
		pods++
		if p.Spec.AutomountServiceAccountToken == nil && automount.Err != nil {
			return unread("the service account "+a.String(), automount.Err)[0]
		}
		if where := f.tokenWithin(p, a); where != "" {
			within = append(within, p.Namespace+"/"+p.Name+": "+where)
		}
	}
	switch {
	case len(within) > 0:
		return Result{Status: Fail, Detail: what + "its token is within reach of user code: " + some(within, "; ")}
	case pods > 0:
		return Result{Status: Warn, Detail: what + "its token is not in any container that runs user code"}
	case automount.Err != nil:
		return unread("the service account "+a.String(), automount.Err)[0]
	case automount.Value == nil:
		return Result{Status: Warn, Detail: what + "there is no such account and no Pod of it yet"}
	case *automount.Value:
		return Result{Status: Warn, Detail: what + "no Pod of it is there, and one that says nothing would get its token in every container"}
	}
	return Result{Status: Warn, Detail: what + "no Pod of it is there, and none gets its token unasked"}
}

func verbs(questions []Question) string {
	var all []string
	for _, q := range questions {
		if !slices.Contains(all, q.Verb) {
			all = append(all, q.Verb)
		}
	}
	return strings.Join(all, ", ")
}

// tokenWithin says where user code can reach a token of the Pod's account, "" where
// it cannot. An init container that ends is none: it has ended before the Pod is
// handed to anybody.
func (f Facts) tokenWithin(p corev1.Pod, a Account) string {
	if f.automounts(p, a) {
		return "automountServiceAccountToken is on"
	}
	companion := false
	for _, c := range staying(p) {
		volume := tokenIn(p, c.VolumeMounts)
		switch {
		case volume == "":
		case slices.Contains(f.Settings.Companions, c.Name):
			companion = true
		default:
			return fmt.Sprintf("container %q mounts the token volume %q", c.Name, volume)
		}
	}
	switch {
	case companion && p.Spec.ShareProcessNamespace != nil && *p.Spec.ShareProcessNamespace:
		return "shareProcessNamespace lets it look into the companion through /proc"
	case companion && p.Spec.HostPID:
		return "hostPID lets it look into the companion through /proc"
	}
	return ""
}

// automounts tells whether kubelet puts the token into every container: the Pod's
// word counts before the account's, and without any it does.
func (f Facts) automounts(p corev1.Pod, a Account) bool {
	if p.Spec.AutomountServiceAccountToken != nil {
		return *p.Spec.AutomountServiceAccountToken
	}
	account := f.Automount[a].Value
	return account == nil || *account
}

// staying are the containers that are there while user code runs.
func staying(p corev1.Pod) []corev1.Container {
	all := slices.Clone(p.Spec.Containers)
	for _, c := range p.Spec.InitContainers {
		if restarts(c) {
			all = append(all, c)
		}
	}
	for _, c := range p.Spec.EphemeralContainers {
		all = append(all, corev1.Container{Name: c.Name, VolumeMounts: c.VolumeMounts, SecurityContext: c.SecurityContext})
	}
	return all
}

// tokenIn is the volume with a token among those that a container mounts. A Secret
// that holds one is known by the name that Kubernetes gives it: verify reads no
// Secret.
func tokenIn(p corev1.Pod, mounts []corev1.VolumeMount) string {
	for _, m := range mounts {
		for _, v := range p.Spec.Volumes {
			if v.Name == m.Name && hasToken(v, p.Spec.ServiceAccountName) {
				return v.Name
			}
		}
	}
	return ""
}

func hasToken(v corev1.Volume, account string) bool {
	switch {
	case v.Secret != nil:
		return strings.HasPrefix(v.Secret.SecretName, cmp.Or(account, "default")+"-token-")
	case v.Projected == nil:
		return false
	}
	return slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool {
		return s.ServiceAccountToken != nil && forTheAPI(s.ServiceAccountToken.Audience) || s.Secret != nil && strings.HasPrefix(s.Secret.Name, cmp.Or(account, "default")+"-token-")
	})
}

// forTheAPI tells whether the API server takes a token of that audience. Cloud
// identities have audiences of their own, and such a token is no way in.
func forTheAPI(audience string) bool {
	return audience == "" || strings.Contains(audience, "kubernetes")
}
