// Package spelling finds the name that somebody meant and mistyped.
package spelling

// Nearest is the known name that a mistyped one is most like, the first of equals,
// and "" where more than most bytes would have to change.
func Nearest(typed string, known []string, most int) string {
	nearest, least := "", most+1
	for _, name := range known {
		if d := distance(typed, name); d < least {
			nearest, least = name, d
		}
	}
	return nearest
}

// distance is how many bytes have to be added, left out or changed to make b of a
// (Levenshtein's).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
