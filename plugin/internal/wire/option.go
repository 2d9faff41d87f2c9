package wire

import "encoding/binary"

// CutOption returns the first of the options of an OPT record, and the options after it. It returns false if the option is
// incomplete.
func CutOption(b []byte) (code uint16, data, rest []byte, ok bool) {
	if len(b) < OptionLen {
		return 0, nil, nil, false
	}
	end := OptionLen + int(binary.BigEndian.Uint16(b[2:]))
	if end > len(b) {
		return 0, nil, nil, false
	}
	return binary.BigEndian.Uint16(b), b[OptionLen:end], b[end:], true
}

// FindOption returns the data of the first option with a code.
func FindOption(options []byte, code uint16) (data []byte, ok bool) {
	for len(options) > 0 {
		var found uint16
		if found, data, options, ok = CutOption(options); !ok || found == code {
			return data, ok
		}
	}
	return nil, false
}

// AppendOption appends an option.
func AppendOption(dst []byte, code uint16, data []byte) []byte {
	dst = binary.BigEndian.AppendUint16(dst, code)
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(data))) // #nosec G115 -- the data are a part of a message
	return append(dst, data...)
}

// Codes of EDNS options.
const (
	optionNSID      = 3     // RFC 5001
	optionCookie    = 10    // RFC 7873
	OptionKeepAlive = 11    // RFC 7828
	optionPadding   = 12    // RFC 7830
	optionError     = 15    // RFC 8914
	optionsLocal    = 65001 // and above, RFC 6891 section 9
)

// Codes of the EDNS options of this project, for local use.
const (
	OptionCaller     = 65313 // the node of the caller, see package caller
	OptionSearchList = 65314 // the search list of the client, see package searchlist
	// OptionNotify requests notification in a query, without data, and has the handles of the data on which an answer depends
	// in a response, see package dso.
	OptionNotify = 65315
)

// Maximum lengths of the data of these options in a query, in bytes.
const (
	MaxCaller     = 1 + 1 + 253 + 1 + 63 // the version, and the names of a node and of a zone with their lengths
	MaxSearchList = 255
)

// validOptions reports whether all options are of common types, and have data of their form.
func validOptions(options []byte) bool {
	for len(options) > 0 {
		code, data, rest, ok := CutOption(options)
		if !ok || !validOption(code, data) {
			return false
		}
		options = rest
	}
	return true
}

func validOption(code uint16, data []byte) bool {
	switch code {
	case optionNSID, optionCookie, optionPadding:
		return true
	case OptionKeepAlive:
		return len(data) == 0 || len(data) == 2 // section 3.1
	case optionError:
		return len(data) >= 2 // section 2
	}
	return code >= optionsLocal // package dns examines others
}
