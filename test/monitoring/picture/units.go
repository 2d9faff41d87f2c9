package picture

import (
	"math"
	"strconv"
)

// format writes a value in a unit of Grafana. If decimals is nil, it has three digits at most.
func format(v float64, unit string, decimals *int) string {
	digits := func(v float64) string {
		if decimals != nil {
			return strconv.FormatFloat(v, 'f', *decimals, 64)
		}
		if v == math.Trunc(v) {
			return strconv.FormatFloat(v, 'f', 0, 64)
		}
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
	scaled := func(steps []string, by float64) string {
		i := 0
		for math.Abs(v) >= by && i < len(steps)-1 {
			v /= by
			i++
		}
		return digits(v) + steps[i]
	}
	switch unit {
	case "percentunit":
		v *= 100
		return digits(v) + " %"
	case "s":
		switch magnitude := math.Abs(v); {
		case v == 0:
			return "0 s"
		case magnitude < 1e-3:
			v *= 1e6
			return digits(v) + " µs"
		case magnitude < 1:
			v *= 1e3
			return digits(v) + " ms"
		case magnitude >= 120:
			v /= 60
			return digits(v) + " min"
		}
		return digits(v) + " s"
	case "bytes":
		return scaled([]string{" B", " KiB", " MiB", " GiB"}, 1024)
	case "reqps":
		return scaled([]string{" req/s", "K req/s", "M req/s"}, 1000)
	case "ops":
		return scaled([]string{" /s", "K /s", "M /s"}, 1000)
	}
	return scaled([]string{"", " K", " M"}, 1000)
}

// ticksTo returns the values of an axis from 0 to one that is at least the highest.
func ticksTo(highest float64, unit string) []float64 {
	if highest <= 0 {
		highest = 1
	}
	base := 10.0
	if unit == "bytes" {
		base = 2
	}
	step := math.Pow(base, math.Floor(math.Log(highest/4)/math.Log(base)))
	for _, factor := range []float64{1, 2, 2.5, 5, 10} {
		if step*factor*4 >= highest {
			step *= factor
			break
		}
	}
	var all []float64
	for i := 0; float64(i-1)*step < highest; i++ {
		all = append(all, float64(i)*step)
	}
	return all
}
