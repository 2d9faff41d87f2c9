package kit

import (
	"errors"
	"fmt"
	"io"
	"net/http"
)

// Get reads a page. A status other than 200 is an error, with the text of the page.
func Get(client *http.Client, url string) (page string, err error) {
	reply, err := client.Get(url)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(reply.Body)
	err = errors.Join(err, reply.Body.Close())
	if err == nil && reply.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %s", url, reply.Status, text)
	}
	return string(text), err
}
