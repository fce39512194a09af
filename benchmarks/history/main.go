// History writes the data directory of a Prometheus that has scraped a Kubernetes cluster for days, as compacted blocks
// of 18 hours: the longest that Prometheus makes with its default retention of 15 days.
//
// promtool reads text for this, at two microseconds per sample on each core. A cluster of 1,000 nodes has 2.4 billion
// samples in a week; this program writes them in two minutes, with the block format of Prometheus' own packages.
//
// Names and labels are those of kube-prometheus: recording rules or raw counters of the node exporter, cAdvisor, and
// kube-state-metrics. Pods of DaemonSets run all the time; those of Deployments are replaced after 3 to 6 days. Values
// are functions of names and times, so that a second run writes the same samples.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"hash/fnv"
	"log"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"sync"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/tsdb/index"
)

const (
	blockSeconds    = 18 * 3600
	samplesPerChunk = 120
	nodeCores       = 16.0
	gib             = float64(1 << 30)
	daySeconds      = 86400.0
	daemonSets      = 3
)

var (
	nodeCount  = flag.Int("nodes", 1000, "number of nodes")
	podCount   = flag.Int("pods", 20, "running pods per node")
	end        = flag.Int64("end", 0, "end of the history in unix seconds")
	days       = flag.Float64("days", 7.1, "length of the history")
	interval   = flag.Int64("interval", 60, "seconds between scrapes")
	raw        = flag.Bool("raw", false, "raw counters of the node exporter instead of recording rules")
	rawCPUs    = flag.Int("cpus", 8, "CPUs per node in the raw counters")
	dataFolder = flag.String("out", "", "data directory to write")
)

// series is one time series: its values between first and last, at the offset of its scrape.
type series struct {
	labels      labels.Labels
	first, last int64
	offset      int64
	value       func(seconds float64) float64
	constant    bool
}

type pod struct {
	node, namespace, name, kind, owner string
	first, last                        int64
	base, phase                        float64
}

// noise is a number in [0, 1) that depends on the parts alone.
func noise(parts ...any) float64 {
	hash := fnv.New64a()
	fmt.Fprint(hash, parts...)
	// FNV changes the upper bits little where only the last characters differ.
	mixed := hash.Sum64() * 0x9E3779B97F4A7C15
	mixed ^= mixed >> 32
	mixed *= 0xD6E8FEB86659FD93
	return float64(mixed>>11) / float64(1<<53)
}

// unique is the end of a pod's name: another number below 1<<20 for each number below it.
func unique(number int) int { return number * 0x9E375 & 0xfffff }

// jitter is a number in [-1, 1] that changes with the minute.
func jitter(seed, seconds float64) float64 {
	x := math.Sin(seconds*0.0137+seed*78.233) * 43758.5453
	return 2*(x-math.Floor(x)) - 1
}

// cores is what a pod uses: the most at its phase, an hour of the day, and on workdays.
func (p pod) cores(seconds float64) float64 {
	return p.base * (1 + 0.6*math.Cos(2*math.Pi*(seconds-p.phase)/daySeconds))
}

// consumed is the integral of cores, with noise that does not let the counter decrease.
func (p pod) consumed(seconds, seed float64) float64 {
	since := seconds - float64(p.first)
	wave := 0.6 * daySeconds / (2 * math.Pi) * (math.Sin(2*math.Pi*(seconds-p.phase)/daySeconds) -
		math.Sin(2*math.Pi*(float64(p.first)-p.phase)/daySeconds))
	return p.base * (since + wave + 10 + 5*jitter(seed, seconds))
}

func nodeName(i int) string {
	return fmt.Sprintf("ip-10-%d-%d-%d.eu-central-1.compute.internal", i>>16, i>>8&255, i&255)
}

// podsOf lists all pods that a node had between begin and end.
func podsOf(i int, begin, end int64) []pod {
	node := nodeName(i)
	heat := 1.0
	if noise("hot", node) < 0.03 {
		heat = 2.0
	}
	apps := max(40, *nodeCount**podCount/60)
	var found []pod
	for k := 0; k < *podCount; k++ {
		if k < daemonSets {
			owner := []string{"node-exporter", "log-agent", "cni"}[k]
			name := fmt.Sprintf("%s-%05x", owner, unique(i))
			found = append(found, pod{node, "kube-system", name, "DaemonSet", owner, begin, end, 0.05, 0})
			continue
		}
		app := int(noise("app", node, k) * noise("skew", node, k) * float64(apps))
		size := 0.08 + 0.6*math.Pow(noise("size", app), 2)
		phase := (9 + 6*noise("phase", app)) * 3600
		period := int64(3*daySeconds + 3*daySeconds*noise("period", app))
		turn := int64(noise("turn", app)*float64(period)) + begin - period
		for number := 0; turn < end; turn, number = turn+period, number+1 {
			first, last := max(turn, begin), min(turn+period, end)
			if last-first < 2**interval {
				continue
			}
			set := fmt.Sprintf("app-%d-%09x", app, int64(noise("set", app, number)*0xfffffffff))
			name := fmt.Sprintf("%s-%05x", set, unique(i**podCount+k))
			namespace := fmt.Sprintf("team-%d", app%40)
			found = append(found, pod{node, namespace, name, "ReplicaSet", set, first, last, heat * size, phase})
		}
	}
	return found
}

func named(name string, pairs ...string) labels.Labels {
	return labels.FromStrings(append([]string{"__name__", name}, pairs...)...)
}

func podSeries(p pod, offset int64) []series {
	seed := noise(p.name)
	cpu := func(seconds float64) float64 { return math.Round(p.consumed(seconds, seed)*1e6) / 1e6 }
	memory := func(seconds float64) float64 {
		return math.Round((0.3+0.4*seed)*gib/4096*(1+0.05*jitter(seed, math.Floor(seconds/600)*600))) * 4096
	}
	id := fmt.Sprintf("/kubepods.slice/kubepods-burstable.slice/pod%012x", int64(seed*0xffffffffffff))
	place := []string{"namespace", p.namespace, "pod", p.name, "node", p.node, "instance", p.node + ":10250",
		"job", "kubelet", "metrics_path", "/metrics/cadvisor", "service", "kubelet"}
	whole := append(place[:len(place):len(place)], "id", id)
	container := append(place[:len(place):len(place)], "id", id+"/main", "container", "main",
		"image", "registry.example.org/"+p.owner, "name", fmt.Sprintf("%016x", int64(seed*float64(1<<62))))
	found := []series{
		{named("container_cpu_usage_seconds_total", append(whole, "cpu", "total")...), p.first, p.last, offset, cpu, false},
		{named("container_cpu_usage_seconds_total", append(container, "cpu", "total")...), p.first, p.last, offset, cpu, false},
		{named("container_memory_rss", whole...), p.first, p.last, offset, memory, false},
		{named("container_memory_rss", container...), p.first, p.last, offset, memory, false},
	}
	state := []string{"namespace", p.namespace, "pod", p.name, "uid", id[len(id)-12:], "job", "kube-state-metrics",
		"instance", "10.0.0.5:8443"}
	add := func(name string, value float64, pairs ...string) {
		all := append(state[:len(state):len(state)], pairs...)
		found = append(found, series{named(name, all...), p.first, p.last, 1500, func(float64) float64 { return value }, true})
	}
	add("kube_pod_info", 1, "node", p.node, "host_ip", "10.0.0.1", "pod_ip", fmt.Sprintf("10.1.%d.1", int(seed*255)),
		"created_by_kind", p.kind, "created_by_name", p.owner, "priority_class", "", "host_network", "false")
	add("kube_pod_owner", 1, "owner_kind", p.kind, "owner_name", p.owner, "owner_is_controller", "true")
	for _, phase := range []string{"Failed", "Pending", "Running", "Succeeded", "Unknown"} {
		value := 0.0
		if phase == "Running" {
			value = 1
		}
		add("kube_pod_status_phase", value, "phase", phase)
	}
	container = []string{"container", "main", "node", p.node}
	add("kube_pod_container_resource_requests", math.Round(p.base*1500)/1000, append(container, "resource", "cpu", "unit", "core")...)
	add("kube_pod_container_resource_requests", gib, append(container, "resource", "memory", "unit", "byte")...)
	return found
}

func nodeSeries(i int, pods []pod, begin, end, offset int64) []series {
	node := nodeName(i)
	seed := noise(node)
	used := func(seconds float64) float64 {
		total := 0.3
		for _, p := range pods {
			if float64(p.first) <= seconds && seconds < float64(p.last) {
				total += p.cores(seconds)
			}
		}
		return math.Min(1, total/nodeCores*(1+0.06*jitter(seed, seconds)))
	}
	exporter := []string{"instance", node, "job", "node-exporter", "namespace", "monitoring"}
	var found []series
	add := func(name string, value func(float64) float64, pairs ...string) {
		all := append(exporter[:len(exporter):len(exporter)], pairs...)
		found = append(found, series{named(name, all...), begin, end, offset, value, false})
	}
	constant := func(name string, value float64, pairs ...string) {
		found = append(found, series{named(name, pairs...), begin, end, 1500, func(float64) float64 { return value }, true})
	}
	memory := func(seconds float64) float64 { return 0.4 + 0.2*seed + 0.02*jitter(seed, math.Floor(seconds/300)*300) }
	if *raw {
		first := float64(begin)
		wave := func(seconds float64) float64 { // one pod with the node's load, so that the integral is known
			mean := pod{base: 0.45 * (0.5 + seed), phase: 11 * 3600, first: begin}
			return mean.consumed(seconds, seed)
		}
		for cpu := 0; cpu < *rawCPUs; cpu++ {
			name := fmt.Sprint(cpu)
			for mode, share := range map[string]float64{"idle": 0, "user": 0.8, "system": 0.2, "iowait": 0, "steal": 0} {
				value := func(seconds float64) float64 { return math.Round(share*wave(seconds)*100) / 100 }
				if mode == "idle" {
					value = func(seconds float64) float64 { return math.Round((seconds-first+20-wave(seconds))*100) / 100 }
				}
				add("node_cpu_seconds_total", value, "cpu", name, "mode", mode)
			}
		}
		add("node_memory_MemTotal_bytes", func(float64) float64 { return 64 * gib })
		add("node_memory_MemAvailable_bytes", func(seconds float64) float64 { return math.Round(64 * gib * (1 - memory(seconds))) })
	} else {
		add("instance:node_cpu_utilisation:rate5m", used)
		add("instance:node_memory_utilisation:ratio", memory)
	}
	add("node_uname_info", func(float64) float64 { return 1 }, "nodename", node, "sysname", "Linux")
	for _, part := range []string{"capacity", "allocatable"} {
		for resource, size := range map[string][2]any{"cpu": {"core", nodeCores}, "memory": {"byte", 64 * gib}, "pods": {"integer", 110.0}} {
			value := size[1].(float64)
			if part == "allocatable" && resource != "pods" {
				value *= 0.95
			}
			constant("kube_node_status_"+part, value, "node", node, "resource", resource, "unit", size[0].(string),
				"job", "kube-state-metrics", "instance", "10.0.0.5:8443")
		}
	}
	return found
}

type flat struct {
	value       float64
	first, last int64
}

type block struct {
	begin, end int64 // milliseconds
	samples    uint64
	chunks     uint64
	constants  map[flat][]chunks.Meta
}

// encode makes the chunks of a series in this block.
func (b *block) encode(each series) []chunks.Meta {
	step := *interval * 1000
	first := max(b.begin, each.first*1000)
	first += ((each.offset-first)%step + step) % step
	last := min(b.end, each.last*1000) - 1
	if last < first {
		return nil
	}
	key := flat{first: first, last: last}
	if each.constant {
		key.value = each.value(0)
		if made, ok := b.constants[key]; ok {
			return append([]chunks.Meta(nil), made...)
		}
	}
	var made []chunks.Meta
	for at := first; at <= last; {
		chunk := chunkenc.NewXORChunk()
		appender, err := chunk.Appender()
		check(err)
		meta := chunks.Meta{Chunk: chunk, MinTime: at}
		for n := 0; n < samplesPerChunk && at <= last; n++ {
			appender.Append(at, each.value(float64(at)/1000))
			meta.MaxTime = at
			at += step
		}
		chunk.Compact()
		made = append(made, meta)
	}
	if each.constant {
		b.constants[key] = append([]chunks.Meta(nil), made...)
	}
	return made
}

func (b *block) write(folder, id string, all []series) {
	b.constants = map[flat][]chunks.Meta{}
	path := filepath.Join(folder, id)
	writer, err := chunks.NewWriter(filepath.Join(path, "chunks"))
	check(err)
	entries := make([]chunkEntry, 0, len(all))
	symbols := map[string]struct{}{}
	for i, each := range all {
		made := b.encode(each)
		if made == nil {
			continue
		}
		check(writer.WriteChunks(made...))
		for k := range made {
			b.samples += uint64(made[k].Chunk.NumSamples())
			made[k].Chunk = nil
		}
		b.chunks += uint64(len(made))
		entries = append(entries, chunkEntry{i, made})
		for _, label := range each.labels {
			symbols[label.Name] = struct{}{}
			symbols[label.Value] = struct{}{}
		}
	}
	check(writer.Close())
	b.writeIndex(filepath.Join(path, "index"), all, entries, symbols)
	meta := map[string]any{
		"ulid": id, "minTime": b.begin, "maxTime": b.end, "version": 1,
		"stats":      map[string]uint64{"numSamples": b.samples, "numSeries": uint64(len(entries)), "numChunks": b.chunks},
		"compaction": map[string]any{"level": 3, "sources": []string{id}},
	}
	text, err := json.Marshal(meta)
	check(err)
	check(os.WriteFile(filepath.Join(path, "meta.json"), text, 0o644))
}

type chunkEntry struct {
	series int
	chunks []chunks.Meta
}

func (b *block) writeIndex(path string, all []series, entries []chunkEntry, symbols map[string]struct{}) {
	writer, err := index.NewWriter(context.Background(), path)
	check(err)
	ordered := make([]string, 0, len(symbols))
	for symbol := range symbols {
		ordered = append(ordered, symbol)
	}
	sort.Strings(ordered)
	for _, symbol := range ordered {
		check(writer.AddSymbol(symbol))
	}
	for number, entry := range entries {
		check(writer.AddSeries(storage.SeriesRef(number+1), all[entry.series].labels, entry.chunks...))
	}
	check(writer.Close())
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	log.SetFlags(0)
	flag.Parse()
	if *dataFolder == "" || *end <= 0 {
		log.Fatal("history: -out and -end are required")
	}
	begin := *end - int64(*days*daySeconds)
	var all []series
	for i := 0; i < *nodeCount; i++ {
		offset := int64(noise("offset", i) * float64(*interval) * 1000)
		pods := podsOf(i, begin, *end)
		for _, each := range pods {
			all = append(all, podSeries(each, offset)...)
		}
		all = append(all, nodeSeries(i, pods, begin, *end, offset)...)
	}
	sort.Slice(all, func(i, k int) bool { return labels.Compare(all[i].labels, all[k].labels) < 0 })
	var samples uint64
	var lock sync.Mutex
	var group sync.WaitGroup
	slots := make(chan struct{}, min(2, runtime.NumCPU()))
	for number, at := 0, begin/blockSeconds*blockSeconds; at < *end; number, at = number+1, at+blockSeconds {
		group.Add(1)
		go func() {
			defer group.Done()
			slots <- struct{}{}
			made := block{begin: max(at, begin) * 1000, end: min(at+blockSeconds, *end) * 1000}
			made.write(*dataFolder, fmt.Sprintf("01%024d", number), all)
			lock.Lock()
			samples += made.samples
			lock.Unlock()
			<-slots
		}()
	}
	group.Wait()
	text, err := json.Marshal(map[string]any{"series": len(all), "samples": samples, "begins": begin, "ends": *end})
	check(err)
	fmt.Println(string(text))
}
