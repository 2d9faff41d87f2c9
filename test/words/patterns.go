package main

import "regexp"

// pattern is a forbidden wording, with its replacement and an example that the test checks.
type pattern struct {
	text    *regexp.Regexp
	instead string
	example string
}

// newPattern returns the pattern of whole words, in any case.
func newPattern(text, instead, example string) pattern {
	return pattern{regexp.MustCompile(`(?i)\b(?:` + text + `)\b`), instead, example}
}

// patterns of prose: comments, messages, pages.
var patterns = []pattern{
	newPattern(`some(?:body|one)|nobody|no one|anybody|anyone|everybody|everyone|whoever|whomever`, "the client, the process, the reader", "Somebody waits"),
	newPattern(`who (?:asks?|asked|waits?|reads?|writes?|needs?|wants?|comes?|calls?|keeps?|sends?|sent|gets?|got|answers?|answered|has it|is asked)`, "the client, the caller, the reader", "who asks for it"),
	newPattern(`what (?:comes?|came|becomes?|became|goes|went|waits?|hangs?|stays?|leaves?|lacks?|differs?|follows?|remains?)`, "the result, the reply", "what came of it"),
	newPattern(`what (?:is|was|are|were) (?:kept|asked|said|told|given|there|known|left|wanted|meant|read|written|needed|sent|stored|served|none|not)`, "name the thing", "what is kept"),
	newPattern(`what (?:it|they|he|each|(?:the|a|an|this|that) [a-z]+) (?:has|have|had|is|are|was|were|says?|said|gives?|gave|knows?|knew|sees?|saw|does|did|needs?|asks?|asked|wants?|keeps?|kept|holds?|held|takes?|took|sends?|sent|makes?|made)`, "name the thing", "compares it with what the model says"),
	newPattern(`h(?:angs?|ung) on`, "depends on", "hangs on its TTL"),
	newPattern(`(?:has|have|had) a say`, "matches, handles", "has a say in it"),
	newPattern(`it (?:is|was) (?:said|told)`, "it is logged, it is reported", "it is told that"),
	newPattern(`(?:is|are|was|were) told`, "receives, is notified", "is told of them"),
	newPattern(`tells? (?:which|whether|what|that|how|when|who|where|apart|of|it|them)`, "reports, identifies", "tells whether it runs"),
	newPattern(`say(?:s|ing)? (?:so|which|whether|what|that|how|when|who|where|it)`, "logs it, reports it", "a log line says so"),
	newPattern(`is there (?:if|twice|already|again|after)`, "exists, is set", "is there if"),
	newPattern(`so many(?:eth)?|so manieth`, "the number, every n-th", "each so manieth query"),
	newPattern(`(?:be|is|are|was|were) believed`, "is trusted", "must not be believed"),
	newPattern(`at the most|at the least`, "at most, at least", "three at the most"),
	newPattern(`(?:is|are|was|were|be) taken for`, "counts as, is treated as", "is taken for the old one"),
	newPattern(`come(?:s)? (?:of|to) (?:it|that)|came (?:of|to|meanwhile)`, "the result, arrived meanwhile", "what it came to"),
	newPattern(`out comes?`, "Input: ...; output: ...", "In go queries; out come answers"),
	newPattern(`goes on|went on|go on`, "continues", "the load goes on"),
}

// identifier is a forbidden word of declared identifiers: a part in camel case, or a whole identifier.
type identifier struct {
	words   []string
	whole   bool
	instead string
}

var identifiers = []identifier{
	{[]string{"came", "said", "saying", "told", "holds", "somebody", "nobody", "anybody", "everybody", "whoever"}, false, "a noun or a verb of the field"},
	{[]string{"of", "on"}, true, "a noun"},
	{[]string{"most", "least"}, true, "max, min, limit"},
}

// quoted are forbidden wordings that are names of other projects or specifications.
var quoted = []string{
	"nobody.invalid", // the mailbox of RFC 6303, section 3
}
