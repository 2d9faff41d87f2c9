package apiserver

import (
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// Option parses one option of a Corefile into a Connection.
type Option struct {
	// Min and Max bound the number of arguments; Max -1 is any number.
	Min, Max int
	// Form is the accepted form of the arguments, for error messages.
	Form string
	// Parse sets the fields of the Connection. The number of the arguments has been checked.
	Parse func(c *Connection, args []string) error
}

// Options are those of every directive that reads an API server, by name.
var Options = map[string]Option{
	"endpoint":               {1, -1, "the URL of an API server, such as https://10.0.0.1:6443", parseEndpoint},
	"tls":                    {3, 3, "three files: CERT KEY CACERT", parseTLS},
	"kubeconfig":             {1, 2, "a file and optionally a context: FILE [CONTEXT]", parseKubeconfig},
	"apiserver_qps":          {1, 1, "a number of requests a second, 0 or more", parseQPS},
	"apiserver_burst":        {1, 1, "a number of requests, 0 or more", parseBurst},
	"apiserver_max_inflight": {1, 1, "a number of requests, 0 or more", parseMaxInflight},
}

func parseEndpoint(c *Connection, args []string) error {
	u, _, err := rest.DefaultServerURL(args[0], "", schema.GroupVersion{}, false)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("invalid URL %q", args[0])
	}
	if len(args) > 1 {
		log.Warningf("endpoint: only the first of %q is used", args)
	}
	c.Endpoint = args[0]
	return nil
}

func parseTLS(c *Connection, args []string) error {
	c.Cert, c.Key, c.CA = args[0], args[1], args[2]
	return nil // checked with the endpoint, by CheckTLS
}

func parseKubeconfig(c *Connection, args []string) error {
	c.Kubeconfig = args[0]
	if len(args) == 2 {
		c.Context = args[1]
	}
	_, err := c.RESTConfig()
	return err
}

func parseQPS(c *Connection, args []string) error {
	qps, err := strconv.ParseFloat(args[0], 32)
	if err != nil || !(qps >= 0) {
		return fmt.Errorf("invalid number %q", args[0])
	}
	c.QPS = float32(qps)
	return nil
}

func parseBurst(c *Connection, args []string) (err error) {
	c.Burst, err = count(args[0])
	return err
}

func parseMaxInflight(c *Connection, args []string) (err error) {
	c.MaxInflight, err = count(args[0])
	return err
}

func count(arg string) (int, error) {
	n, err := strconv.Atoi(arg)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("invalid number %q", arg)
	}
	return n, nil
}

// CheckTLS returns an error if the files of the option tls cannot be used. They are used with an endpoint only.
func (c Connection) CheckTLS() error {
	if c.Endpoint == "" || c.Kubeconfig != "" {
		return nil
	}
	_, err := c.RESTConfig()
	return err
}
