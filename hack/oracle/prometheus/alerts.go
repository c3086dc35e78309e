package main

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/util/annotations"
)

const minute = int64(time.Minute / time.Millisecond)

var engine = promql.NewEngine(promql.EngineOpts{
	MaxSamples: 1_000_000,
	Timeout:    time.Minute,
	Parser:     parser.NewParser(parser.Options{}),
})

// measurements are all series; it is what the engine reads.
type measurements []promql.Series

func parseSeries(lines []string) (measurements, error) {
	var found measurements
	for _, line := range lines {
		metric, values, err := parser.NewParser(parser.Options{}).ParseSeriesDesc(line)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", line, err)
		}
		series := promql.Series{Metric: metric}
		for at, value := range values {
			if !value.Omitted {
				series.Floats = append(series.Floats, promql.FPoint{T: int64(at) * minute, F: value.Value})
			}
		}
		found = append(found, series)
	}
	return found, nil
}

func (m measurements) Querier(_, _ int64) (storage.Querier, error) {
	return &storage.MockQuerier{SelectMockFunction: func(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
		set := &seriesSet{next: -1}
		for _, series := range m {
			if matchesAll(series.Metric, matchers) {
				set.series = append(set.series, series)
			}
		}
		return set
	}}, nil
}

func matchesAll(metric labels.Labels, matchers []*labels.Matcher) bool {
	for _, matcher := range matchers {
		if !matcher.Matches(metric.Get(matcher.Name)) {
			return false
		}
	}
	return true
}

type seriesSet struct {
	series []promql.Series
	next   int
}

func (s *seriesSet) Next() bool {
	s.next++
	return s.next < len(s.series)
}
func (s *seriesSet) At() storage.Series                { return promql.NewStorageSeries(s.series[s.next]) }
func (s *seriesSet) Err() error                        { return nil }
func (s *seriesSet) Warnings() annotations.Annotations { return nil }

// firing evaluates one rule each minute: an alert fires when its expression has held for the whole of its `for`.
func firing(rule rulefmt.Rule, measured measurements, at int64) ([]string, error) {
	held := map[string]int64{}
	needed := int64(time.Duration(rule.For)/time.Minute) + 1
	for now := int64(0); now <= at; now++ {
		query, err := engine.NewInstantQuery(context.Background(), measured, nil, rule.Expr, time.UnixMilli(now*minute))
		if err != nil {
			return nil, err
		}
		result := query.Exec(context.Background())
		if result.Err != nil {
			return nil, result.Err
		}
		vector, err := result.Vector()
		if err != nil {
			return nil, err
		}
		still := map[string]int64{}
		for _, sample := range vector {
			key := sample.Metric.String()
			still[key] = held[key] + 1
		}
		held = still
		query.Close()
	}
	var names []string
	for _, minutes := range held {
		if minutes >= needed {
			names = append(names, rule.Alert)
		}
	}
	return names, nil
}
