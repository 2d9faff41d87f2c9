package nodelocal

import "testing"

// FuzzParse parses any text without a panic. A valid configuration has rules in both backends.
func FuzzParse(f *testing.F) {
	f.Add("nodelocal 169.254.20.10 fd00::a {\n fallback 10.0.0.1\n health 8080\n}")
	f.Add("nodelocal 10.96.0.10 {\n setup none\n backend iptables\n}")
	f.Fuzz(func(t *testing.T, text string) {
		cfg, err := parseConfig(controller(text))
		if err != nil || len(cfg.Addresses) == 0 {
			return
		}
		if cfg.TableText() == "" || cfg.IPTablesText() == "" {
			t.Error("no rules")
		}
	})
}
