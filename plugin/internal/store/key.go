package store

import (
	"encoding/binary"

	"github.com/nearside-dns/nearside/plugin/internal/searchlist"
	"github.com/nearside-dns/nearside/plugin/internal/wire"
)

// keyHead is the length of a key before the name: keyspace, type, class, flags.
const keyHead = 4 + 2 + 2 + 1

// keyFlags is the offset of the flags in a key.
const keyFlags = keyHead - 1

// Flags in a key: the query's flags that change answers, and the fields after the name.
const (
	keyDO     = 1
	keyCD     = 2
	keySearch = 4 // one byte of length and the data of a search list
	keyList   = 8 // the ID of a search list
)

// numberLen is the length in a key of the number of a view, and of the ID of a search list.
const numberLen = 4

// MaxKey is the maximum length of a key in bytes, without the names of a view's node and zone: a key with them fits unless it
// also has a long name or a long search list.
const MaxKey = keyHead + wire.MaxName + 1 + wire.MaxSearchList + numberLen + numberLen

// AppendKey appends the key of the answer to a query to dst: the keyspace, type, class, the flags DO and CD, the name in
// lower case, and the search list.
func AppendKey(dst []byte, keyspace uint32, query []byte, q *wire.Query) []byte {
	dst = binary.BigEndian.AppendUint32(dst, keyspace)
	dst = binary.BigEndian.AppendUint16(dst, q.Type)
	dst = binary.BigEndian.AppendUint16(dst, q.Class)
	dst = append(dst, wire.Flag(q.DO, keyDO)|wire.Flag(q.CD, keyCD)|wire.Flag(q.Search != nil, keySearch))
	if name := q.Name(query); q.Upper {
		dst = wire.AppendLower(dst, name)
	} else {
		dst = append(dst, name...)
	}
	if q.Search == nil {
		return dst
	}
	return append(append(dst, byte(len(q.Search))), q.Search...)
}

// QueryFromKey sets a query from a key without the number of a view or the ID of a search list, and appends the query in wire
// form to buf, which must be empty: with RD, and with an OPT record, so that the reply may have options. The query has the
// same key in the keyspace. QueryFromKey returns false for any other key.
func QueryFromKey(q *wire.Query, buf, key []byte) ([]byte, bool) {
	if len(key) < keyHead+1 || key[keyFlags]&^(keyDO|keyCD|keySearch) != 0 {
		return nil, false
	}
	end := wire.NameEnd(key, keyHead)
	if end == 0 {
		return nil, false
	}
	flags, search := key[keyFlags], key[end:]
	b := append(buf, 0, 0, wire.RD, wire.Flag(flags&keyCD != 0, wire.CD), 0, 1, 0, 0, 0, 0, 0, 1)
	b = append(append(b, key[keyHead:end]...), key[4:keyFlags]...)
	opt := len(b)
	b = (&wire.Query{UDPSize: searchlist.UDPSize, DO: flags&keyDO != 0}).AppendOPT(b, nil)
	if flags&keySearch != 0 {
		if len(search) == 0 || len(search) != 1+int(search[0]) {
			return nil, false
		}
		b, search = searchlist.AppendOption(b, search[1:]), nil
		wire.EndOPT(b, opt)
	}
	return b, len(search) == 0 && q.Parse(b) && !q.Upper
}

// KeyName returns the name in a key, in wire form and lower case. It is a slice of the key.
func KeyName(key []byte) []byte {
	return key[keyHead:wire.NameEnd(key, keyHead)]
}

// appendKeyView returns the key of the answer for one view of callers (see Views): the number, then the node with its length,
// and the zone.
func appendKeyView(key []byte, v *View) []byte {
	key = binary.BigEndian.AppendUint32(key, v.Number)
	if v.Node == "" {
		return key
	}
	key = append(key, byte(len(v.Node))) // #nosec G115 -- at most caller.MaxNode
	return append(append(key, v.Node...), v.Zone...)
}

// AppendKeyList returns the key of the answer found with a search list, by the ID of the list. The key must not have a
// view. Keys without a list, and keys with a list in an EDNS option, differ from the result.
func AppendKeyList(key []byte, list uint32) []byte {
	key[keyFlags] |= keyList
	return binary.BigEndian.AppendUint32(key, list)
}

// SetKeyspace replaces the keyspace of a key.
func SetKeyspace(key []byte, keyspace uint32) { binary.BigEndian.PutUint32(key, keyspace) }
