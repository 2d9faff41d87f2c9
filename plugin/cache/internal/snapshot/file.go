package snapshot

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"iter"

	"github.com/nearside-dns/nearside/plugin/internal/wholefile"
)

// Read returns the content of a file of at most limit bytes.
func Read(path string, limit int64) ([]byte, error) {
	f, size, err := wholefile.Open(path)
	if err != nil {
		return nil, err
	}
	if size > limit {
		return nil, errors.Join(fmt.Errorf("%d bytes, more than the limit of %d", size, limit), f.Close())
	}
	b, err := io.ReadAll(io.LimitReader(f, limit+1)) // it may have grown
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("more than the limit of %d bytes", limit)
	}
	return b, nil
}

// Write replaces a file by one with records, up to limit bytes: further records are ignored. The present file remains until the new
// one is complete, also if several processes write. pause is called before each 256 KiB; its error ends the writing.
func Write(path string, h Header, limit int64, records iter.Seq[Record], pause func() error) (written int, err error) {
	err = wholefile.Replace(path, func(w io.Writer) error {
		written, err = write(w, h, limit, records, pause)
		return err
	})
	if err != nil {
		return 0, err
	}
	return written, nil
}

// pauseEvery is the number of bytes after which Write calls pause.
const pauseEvery = 256 << 10

func write(f io.Writer, h Header, limit int64, records iter.Seq[Record], pause func() error) (written int, err error) {
	w := &pacedWriter{w: f, sum: crc32.New(castagnoli), pause: pause}
	out := bufio.NewWriterSize(w, pauseEvery)
	buf := appendHeader(nil, &h)
	size := int64(len(buf) + sumLen)
	if _, err := out.Write(buf); err != nil {
		return 0, err
	}
	for r := range records {
		if size += int64(r.Len()); size > limit {
			break
		}
		buf = appendRecord(buf[:0], &r)
		if _, err := out.Write(buf); err != nil {
			return 0, err
		}
		written++
	}
	if err := out.Flush(); err != nil {
		return 0, err
	}
	_, err = f.Write(binary.BigEndian.AppendUint32(buf[:0], w.sum.Sum32()))
	return written, err
}

// pacedWriter calls pause before each write, and adds up the checksum.
type pacedWriter struct {
	w     io.Writer
	sum   hash.Hash32
	pause func() error
}

// Write implements io.Writer.
func (w *pacedWriter) Write(b []byte) (int, error) {
	if err := w.pause(); err != nil {
		return 0, err
	}
	if _, err := w.sum.Write(b); err != nil {
		return 0, err
	}
	return w.w.Write(b)
}
