// Packing scores nodes with TargetLoadPacking's formula as a Go plug-in does: node by node, each looked up in a map of
// metrics, with the CPU's metric sought among those of the node, and the pods that were assigned a moment ago sought in
// another map. It prints the nanoseconds of the quickest pass over all nodes.
package main

import (
	"flag"
	"fmt"
	"math"
	"math/rand"
	"time"
)

type metric struct {
	Type     string
	Operator string
	Value    float64
}

type node struct {
	name     string
	capacity int64 // millicores
}

const target = 40.0

func score(each node, metrics map[string][]metric, recent map[string]int64, pod int64) int64 {
	load, found := 0.0, false
	for _, one := range metrics[each.name] {
		if one.Type == "CPU" && (one.Operator == "AVG" || one.Operator == "Latest") {
			load, found = one.Value, true
		}
	}
	if !found {
		return 0
	}
	predicted := 0.0
	if each.capacity > 0 {
		capacity := float64(each.capacity)
		predicted = 100 * (load/100*capacity + float64(pod) + float64(recent[each.name])) / capacity
	}
	switch {
	case predicted > 100:
		return 0
	case predicted > target:
		return int64(math.Round(target * (100 - predicted) / (100 - target)))
	default:
		return int64(math.Round((100-target)*predicted/target + target))
	}
}

func main() {
	count := flag.Int("nodes", 5000, "")
	passes := flag.Int("passes", 100, "the quickest counts")
	flag.Parse()
	nodes := make([]node, *count)
	metrics := make(map[string][]metric)
	recent := make(map[string]int64)
	for i := range nodes {
		name := fmt.Sprintf("ip-10-0-%d.internal", i)
		nodes[i] = node{name, 64000}
		metrics[name] = []metric{
			{"CPU", "STD", 20 * rand.Float64()},
			{"CPU", "AVG", 90 * rand.Float64()},
			{"Memory", "AVG", 90 * rand.Float64()},
			{"Memory", "STD", 5 * rand.Float64()},
		}
		if i%10 == 0 {
			recent[name] = 1150
		}
	}
	scores := make([]int64, *count)
	best := time.Duration(math.MaxInt64)
	for range *passes {
		began := time.Now()
		for i, each := range nodes {
			scores[i] = score(each, metrics, recent, 1150)
		}
		best = min(best, time.Since(began))
	}
	fmt.Println(best.Nanoseconds())
}
