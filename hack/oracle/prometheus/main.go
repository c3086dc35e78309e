// Answers what Prometheus' own code makes of expositions, rules and expressions.
//
// Reads one JSON question per line from standard input, writes one JSON answer per line to standard output.
// Built and run by hack/oracle/oracle.py.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

// question has exactly one field set.
type question struct {
	// Exposition is what a program answers on /metrics.
	Exposition string `json:"exposition"`
	// Rules is a rule file.
	Rules string `json:"rules"`
	// Expression is PromQL.
	Expression string `json:"expression"`
	// Series are, beside rules, what was measured: in promtool's notation, one value a minute from time 0 on.
	Series []string `json:"series"`
	// Minute is when the alerts of the rules are looked at.
	Minute int64 `json:"minute"`
}

type selector struct {
	Metric string   `json:"metric"`
	Labels []string `json:"labels"`
}

type answer struct {
	Problems []string `json:"problems"`
	// Metrics are the families of an exposition: name to type.
	Metrics map[string]string `json:"metrics,omitempty"`
	// Selectors are what an expression, or the expressions of rules, ask for.
	Selectors []selector `json:"selectors,omitempty"`
	// Alerts are the names of those that fire, each once for each set of labels.
	Alerts []string `json:"alerts,omitempty"`
}

func (a *answer) problem(format string, values ...any) {
	a.Problems = append(a.Problems, fmt.Sprintf(format, values...))
}

func (a *answer) exposition(text string) {
	textParser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := textParser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		a.problem("%v", err)
		return
	}
	a.Metrics = map[string]string{}
	for name, family := range families {
		a.Metrics[name] = strings.ToLower(family.GetType().String())
		seen := map[string]bool{}
		for _, metric := range family.GetMetric() {
			parts := []string{}
			for _, pair := range metric.GetLabel() {
				parts = append(parts, pair.GetName()+"="+pair.GetValue())
			}
			key := strings.Join(parts, "\xff")
			if seen[key] {
				a.problem("%s: the series %v appears twice", name, parts)
			}
			seen[key] = true
		}
	}
	lints, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil {
		a.problem("%v", err)
	}
	for _, lint := range lints {
		a.problem("%s: %s", lint.Metric, lint.Text)
	}
}

func (a *answer) expression(text string) {
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(text)
	if err != nil {
		a.problem("%s: %v", text, err)
		return
	}
	a.collect(parsed)
}

func (a *answer) collect(parsed parser.Expr) {
	parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
		if found, ok := node.(*parser.VectorSelector); ok {
			one := selector{Metric: found.Name, Labels: []string{}}
			for _, matcher := range found.LabelMatchers {
				if matcher.Name != labels.MetricName {
					one.Labels = append(one.Labels, matcher.Name)
				}
			}
			a.Selectors = append(a.Selectors, one)
		}
		return nil
	})
}

func (a *answer) rules(q question) {
	groups, errs := rulefmt.Parse([]byte(q.Rules), false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.Default())
	for _, err := range errs {
		a.problem("%v", err)
	}
	if groups == nil {
		return
	}
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			a.expression(rule.Expr)
		}
	}
	if len(q.Series) == 0 || len(a.Problems) > 0 {
		return
	}
	measured, err := parseSeries(q.Series)
	if err != nil {
		a.problem("%v", err)
		return
	}
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			firing, err := firing(rule, measured, q.Minute)
			if err != nil {
				a.problem("%s: %v", rule.Alert, err)
			}
			a.Alerts = append(a.Alerts, firing...)
		}
	}
}

func ask(q question) (a answer) {
	a.Problems = []string{}
	defer func() {
		if problem := recover(); problem != nil {
			a.problem("panic: %v", problem)
		}
	}()
	switch {
	case q.Exposition != "":
		a.exposition(q.Exposition)
	case q.Rules != "":
		a.rules(q)
	default:
		a.expression(q.Expression)
	}
	return a
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	answers := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var q question
		a := answer{}
		if err := json.Unmarshal(lines.Bytes(), &q); err != nil {
			a.problem("no question: %v", err)
		} else {
			a = ask(q)
		}
		if err := answers.Encode(a); err != nil {
			panic(err)
		}
	}
	if err := lines.Err(); err != nil {
		panic(err)
	}
}
