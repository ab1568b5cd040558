package bundle

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
)

func TestAValueIsTakenOutHoweverItIsWrittenToItsName(t *testing.T) {
	r := NewRedactor(nil, nil)
	for text, want := range map[string]string{
		`panic: body {\"password\":\"CANARY\",\"x\":1} end`:       `panic: body {\"password\":\"(removed)\",\"x\":1} end`,
		`a "{\\\"token\\\": \\\"CAN \\\\\\\" ARY\\\"}" b`:         `a "{\\\"token\\\": \\\"(removed)\\\"}" b`,
		`\u0022token\u0022:\u0022CAN ARY\u0022, x`:                `\u0022token\u0022:\u0022(removed)\u0022, x`,
		`<a secret=&quot;CAN ARY&quot; b=&quot;c&quot;>`:          `<a secret=&quot;(removed)&quot; b=&quot;c&quot;>`,
		`<SecretAccessKey>CANARY/+=</SecretAccessKey><Bucket>b`:   `<SecretAccessKey>(removed)</SecretAccessKey><Bucket>b`,
		`<s3:SessionToken a="b">CAN ARY</s3:SessionToken> done`:   `<s3:SessionToken a="b">(removed)</s3:SessionToken> done`,
		`\u003cSessionToken\u003eCANARY\u003c/SessionToken\u003e`: `\u003cSessionToken\u003e(removed)\u003c/SessionToken\u003e`,
		`password="correct CANARY battery" user=ada`:              `password="(removed)" user=ada`,
		`password: 'a b CANARY', user: ada`:                       `password: '(removed)', user: ada`,
		`password="a \" CANARY" b`:                                `password="(removed)" b`,
		`password='a'"CAN"ARY user=ada`:                           `password=(removed) user=ada`,
		`{'password': b'CAN ARY', 'user': 'ada'}`:                 `{'password': b'(removed)', 'user': 'ada'}`,
		`password="not CANARY closed`:                             `password="(removed)`,
		`password=CAN\ ARY user=ada`:                              `password=(removed) user=ada`,
		`secret_key = CANARY;CANARY2 x`:                           `secret_key = (removed) x`,
		`clone https://ada:pa/CANARY@example.org/x now`:           `clone https://(removed)@example.org/x now`,
		`clone https://ada:pa?CAN#ARY@example.org/x now`:          `clone https://(removed)@example.org/x now`,
		`AWS4-HMAC-SHA256 Credential=CANARY/x, Signature=CANARY`:  `AWS4-HMAC-SHA256 Credential=(removed) Signature=(removed)`,
		`X-Amz-Signature=CANARY&X-Amz-Date=CANARY ok`:             `X-Amz-Signature=(removed) ok`,
		`Authorization: AWS4 a=b, CANARY` + "\nnext":              "Authorization: (removed)\nnext",
		`Cookie: a=b; session=CANARY`:                             `Cookie: (removed)`,
		`Cookie: "a"; session=CANARY`:                             `Cookie: (removed)`,
		`Set-Cookie: sid=CANARY; Path=/`:                          `Set-Cookie: (removed)`,
		`{"Cookie":"a=b; CANARY","x":1}`:                          `{"Cookie":"(removed)","x":1}`,
		`map[Cookie:[a=b; CANARY] Host:[h]]`:                      `map[Cookie:[(removed)] Host:[h]]`,
		`pwd=CANARY x`:                                            `pwd=(removed) x`,
		`MYSQL_PWD=CANARY PGPASS=CANARY dbPass: CANARY x`:         `MYSQL_PWD=(removed) PGPASS=(removed) dbPass: (removed) x`,
		`_auth=CANARY sig=CANARY x`:                               `_auth=(removed) sig=(removed) x`,
		`token: [CANARY] x`:                                       `token: [(removed)] x`,
		`token: [a, "]", [CANARY]] x`:                             `token: [(removed)] x`,
		`token={CANARY} x`:                                        `token={(removed)} x`,
		`token: [CAN ARY`:                                         `token: [(removed)`,
		`token => CANARY x`:                                       `token => (removed) x`,
		`next=token%3DCANARY%26a x`:                               `next=token%3D(removed) x`,
		`run --password 'a CANARY' -v`:                            `run --password '(removed)' -v`,
		`args ["--password", "a CANARY", "-v"]`:                   `args ["--password", "(removed)", "-v"]`,
		`token='it"; password="it's CANARY"; x`:                   `token=(removed)"; x`,
		`token: (removed) x`:                                      `token: (removed) x`,
	} {
		if got := r.Text(text); got != want || strings.Contains(got, "CAN") || strings.Contains(got, "ARY") {
			t.Errorf("%s\n got %s\nwant %s", text, got, want)
		}
		if once := r.Text(text); r.Text(once) != once {
			t.Errorf("%s: taken out twice it is %s", once, r.Text(once))
		}
	}
}

func TestAListUnderTheNameOfASecretIsTakenOutOfADocument(t *testing.T) {
	r := NewRedactor(nil, nil)
	line := r.Line(`{"Cookie":["a=CANARY","CANARY"],"imagePullSecrets":[{"name":"registry"}],"example.org/token":"CANARY","X-Amz-Signature":[["CANARY"]]}`)
	want := `{"Cookie":["(removed)","(removed)"],"X-Amz-Signature":[["(removed)"]],"example.org/token":"(removed)","imagePullSecrets":[{"name":"registry"}]}`
	if line != want {
		t.Errorf("%s\nwant %s", line, want)
	}
}

func TestOrdinaryLinesStayAsTheyAre(t *testing.T) {
	r := NewRedactor(nil, nil)
	for _, line := range []string{
		`time=2026-01-02T03:04:05Z level=INFO msg=granted pod=here/sandbox target=ada kind=files flags=rw,nosuid,nodev took=3.1ms`,
		`level=WARN msg="grant failed" pod=here/sandbox target=code code=NODE_MOUNT_GATEWAY_SECRET_REFUSED try=2`,
		`code: NODE_MOUNT_GATEWAY_SECRET_REFUSED: the Secret named by the grant was not used`,
		`failed="map[code:NODE_MOUNT_GATEWAY_SECRET_REFUSED data:NODE_MOUNT_GATEWAY_MOUNT_FAILED]"`,
		`mounted home/users/ada as ada, and the tokens of all others, passed=3 bypass=true author=ada compass: north config: x`,
		`the secret of x -> y, a token > 3, "secret", and [token]`,
		`GET https://10.96.0.1:443/api/v1/pods 200 OK in 3 milliseconds`,
		`fetching https://git.example.org:8443/team/repo at 0123456789abcdef0123456789abcdef01234567`,
		`git@github.com:team/repo.git, 10.0.0.1:/export at /mnt/a@b, fd00::1`,
		`36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`,
		`MountVolume.SetUp failed for volume "kube-api-access-x7k2p" : configmap "kube-root-ca.crt" not found`,
		`<nil> <root@node> &lt;none&gt; a<b> --no-exec --token-free-flag`,
		`exec format error: {"a":1,"b":[true,null]} 'quoted' "it's"`,
	} {
		if got := r.Text(line); got != line {
			t.Errorf("%s\n became %s", line, got)
		}
	}
}

// shape is a way in which a secret gets into a text. It cannot carry every byte: what
// ends the value there is not part of it.
type shape struct {
	cannot string
	write  func(name, secret string) string
}

func shapes() []shape {
	const space = " \t\r\n\v\f\u0085\u00a0"
	quoted := func(v any) string {
		b, err := json.Marshal(v)
		if err != nil {
			panic(err) // texts can be written
		}
		return string(b)
	}
	object := func(name, secret string) string { return quoted(map[string]string{name: secret, "z": "1"}) }
	plain := func(form string) func(name, secret string) string {
		return func(name, secret string) string { return fmt.Sprintf(form, name, secret) }
	}
	return []shape{
		{"", object},
		{"", func(n, s string) string { return quoted(object(n, s)) }},
		{"", func(n, s string) string { return "x " + quoted(quoted(object(n, s))) }},
		{"", func(n, s string) string { return strings.Trim(quoted(object(n, s)), `"`) }},
		{"", func(n, s string) string { return quoted(map[string][]string{n: {s}}) }},
		{"", func(n, s string) string { return n + "=" + url.QueryEscape(s) }},
		{"", func(n, s string) string { return url.QueryEscape(n + "=" + s) }},
		{"", func(n, s string) string { return url.QueryEscape(object(n, s)) }},
		{"", func(_, s string) string {
			return (&url.URL{Scheme: "https", User: url.UserPassword("a", s), Host: "h"}).String()
		}},
		{"", func(n, s string) string { return fmt.Sprintf("%s=%q x", n, s) }},
		{`"\`, plain(`%s="%s" x`)},
		{`'\`, plain(`%s: '%s', x`)},
		{`'\`, plain(`run --%s '%s' x`)},
		{space + `"'` + "`\\&[{($*@", plain("%s=%s x")},
		{space + `"'` + "`\\&[{($*@", plain("%s: %s x")},
		{space + `"'` + "`\\&[{($*@-", plain("run --%s %s x")},
		{"\n\r\"'`\\&[]{}()", plain("%s: [%s] x")},
		{"\n\r\"'`\\&[]{}()", plain("%s={%s} x")},
		{"<&\n\\", plain("<%[1]s>%[2]s</%[1]s>")},
		{space + `"<>`, func(_, s string) string { return "https://ada:" + s + "@example.org/x" }},
		{"\n\"'`\\&[{($*@", func(_, s string) string { return "Cookie: " + s }},
		{"\n", func(_, s string) string { return "Set-Cookie: sid=" + s + "; Path=/" }},
		{"\n", func(_, s string) string { return "Authorization: Bearer " + s }},
	}
}

// A canary is found as a whole: what comes through in two parts has not come through,
// and is no word of the texts around.
func FuzzACanaryInNoShapeComesThrough(f *testing.F) {
	const canary = "CANARY"
	names := []string{"password", "SecretAccessKey", "X-Amz-Signature", "api-token", "pwd", "db_pass", "sig", "session-cookie"}
	for i := range shapes() {
		for j := range names {
			f.Add(i, j, "", "", "", "")
			f.Add(i, j, "a ", ` "`, "see: ", " and more")
			f.Add(i, j, `pa/ss\`, `'; x@y?z`, `token="`, `"}`)
			f.Add(i, j, "a&b", "<]})", "msg='", "'")
		}
	}
	r := NewRedactor(nil, nil)
	f.Fuzz(func(t *testing.T, which, named int, head, tail, before, after string) {
		all := shapes()
		s := all[int(uint(which)%uint(len(all)))]
		keep := func(c rune) rune {
			if strings.ContainsRune(s.cannot, c) || c == 0xFFFD {
				return -1
			}
			return c
		}
		secret := strings.Map(keep, head) + canary + strings.Map(keep, tail)
		// The texts around end before the name begins, and do not hold one of their own.
		if slices.ContainsFunc([]string{head, tail, before, after}, func(x string) bool { return strings.Contains(x, canary) }) {
			t.Skip()
		}
		text := before + " " + s.write(names[int(uint(named)%uint(len(names)))], secret) + " " + after
		for how, got := range map[string]string{"text": r.Text(text), "line": r.Line(text), "strict": r.Strict(text)} {
			if strings.Contains(got, canary) {
				t.Errorf("%s: %q\nbecame %q", how, text, got)
			}
		}
	})
}
