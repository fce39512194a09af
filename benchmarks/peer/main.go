// Peer is the Go load-watcher's HTTP handler, as far as its speed goes: the document stands in memory as structs and
// maps, and each request copies all of it under the lock, and then encodes what it was asked for.
//
// That is what paypal/load-watcher does (pkg/watcher/watcher.go: GetLatestWatcherMetrics deep-copies into a map that
// grows, handler takes the one node out of the copy for ?host=, encodes into a buffer that grows, and writes it at
// once). It encodes with gojay, which writes without reflection; so does this program, with the standard library alone.
// Gzip is done per request, where asked for, as a middleware around it would, at the quickest level. /ready is what Go
// could do at best: the list as bytes that are there already.
//
// It takes its document from a running load-watcher at its start, so that both serve the same nodes and numbers.
package main

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
)

type window struct {
	Duration string `json:"duration"`
	Start    int64  `json:"start"`
	End      int64  `json:"end"`
}

type metric struct {
	Name     string  `json:"name"`
	Type     string  `json:"type"`
	Operator string  `json:"operator"`
	Rollup   string  `json:"rollup"`
	Value    float64 `json:"value"`
}

type metadata struct {
	DataCenter string `json:"dataCenter"`
}

type nodeMetrics struct {
	Metrics  []metric          `json:"metrics"`
	Tags     map[string]string `json:"tags"`
	Metadata metadata          `json:"metadata"`
}

type document struct {
	Timestamp int64  `json:"timestamp"`
	Window    window `json:"window"`
	Source    string `json:"source"`
	Data      struct {
		NodeMetricsMap map[string]nodeMetrics `json:"NodeMetricsMap"`
	} `json:"data"`
}

type watcher struct {
	mutex  sync.RWMutex
	latest *document
}

// copied is the whole document again, as upstream's deepCopyWatcherMetrics makes it for every request.
func (w *watcher) copied() *document {
	w.mutex.RLock()
	defer w.mutex.RUnlock()
	fresh := &document{Timestamp: w.latest.Timestamp, Window: w.latest.Window, Source: w.latest.Source}
	nodes := make(map[string]nodeMetrics)
	for name, node := range w.latest.Data.NodeMetricsMap {
		metrics := make([]metric, len(node.Metrics))
		copy(metrics, node.Metrics)
		nodes[name] = nodeMetrics{Metrics: metrics, Tags: node.Tags, Metadata: node.Metadata}
	}
	fresh.Data.NodeMetricsMap = nodes
	return fresh
}

func (w *watcher) ServeHTTP(response http.ResponseWriter, request *http.Request) {
	answer := w.copied()
	host := request.URL.Query().Get("host")
	if host == "" {
		host = strings.TrimPrefix(strings.TrimPrefix(request.URL.Path, "/watcher"), "/")
	}
	response.Header().Set("Content-Type", "application/json")
	if host != "" {
		node, known := answer.Data.NodeMetricsMap[host]
		if !known {
			http.Error(response, "No metrics found for host "+host, http.StatusNotFound)
			return
		}
		answer.Data.NodeMetricsMap = map[string]nodeMetrics{host: node}
	}
	body := encode(answer)
	if !strings.Contains(request.Header.Get("Accept-Encoding"), "gzip") {
		response.Write(body)
		return
	}
	response.Header().Set("Content-Encoding", "gzip")
	compressor := compressors.Get().(*gzip.Writer)
	defer compressors.Put(compressor)
	compressor.Reset(response)
	compressor.Write(body)
	compressor.Close()
}

var compressors = sync.Pool{New: func() any {
	writer, err := gzip.NewWriterLevel(nil, gzip.BestSpeed)
	if err != nil {
		log.Fatal(err)
	}
	return writer
}}

// encode writes by appending, field by field. A buffer that grows from small to the whole is part of it, as in gojay.
func encode(from *document) []byte {
	text := make([]byte, 0, 512)
	text = append(text, `{"timestamp":`...)
	text = strconv.AppendInt(text, from.Timestamp, 10)
	text = append(text, `,"window":{"duration":`...)
	text = appendText(text, from.Window.Duration)
	text = append(text, `,"start":`...)
	text = strconv.AppendInt(text, from.Window.Start, 10)
	text = append(text, `,"end":`...)
	text = strconv.AppendInt(text, from.Window.End, 10)
	text = append(text, `},"source":`...)
	text = appendText(text, from.Source)
	text = append(text, `,"data":{"NodeMetricsMap":{`...)
	first := true
	for name, node := range from.Data.NodeMetricsMap {
		if !first {
			text = append(text, ',')
		}
		first = false
		text = appendText(text, name)
		text = append(text, ':')
		text = appendNode(text, &node)
	}
	return append(text, `}}}`...)
}

func appendNode(text []byte, node *nodeMetrics) []byte {
	text = append(text, `{"metrics":[`...)
	for position := range node.Metrics {
		one := &node.Metrics[position]
		if position > 0 {
			text = append(text, ',')
		}
		text = append(text, `{"name":`...)
		text = appendText(text, one.Name)
		text = append(text, `,"type":`...)
		text = appendText(text, one.Type)
		text = append(text, `,"operator":`...)
		text = appendText(text, one.Operator)
		text = append(text, `,"rollup":`...)
		text = appendText(text, one.Rollup)
		text = append(text, `,"value":`...)
		text = strconv.AppendFloat(text, one.Value, 'f', -1, 64)
		text = append(text, '}')
	}
	text = append(text, `],"tags":{},"metadata":{"dataCenter":`...)
	text = appendText(text, node.Metadata.DataCenter)
	return append(text, `}}`...)
}

// appendText writes a string letter by letter, escaping what must be, as gojay does.
func appendText(text []byte, value string) []byte {
	text = append(text, '"')
	for position := 0; position < len(value); position++ {
		switch letter := value[position]; {
		case letter == '"' || letter == '\\':
			text = append(text, '\\', letter)
		case letter < ' ':
			text = append(text, fmt.Sprintf("\\u%04x", letter)...)
		default:
			text = append(text, letter)
		}
	}
	return append(text, '"')
}

func read(address string) (*document, error) {
	answer, err := http.Get(address)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, errors.New(answer.Status)
	}
	found := &document{}
	return found, json.NewDecoder(answer.Body).Decode(found)
}

func main() {
	from := flag.String("from", "", "address of the document to serve")
	listen := flag.String("listen", "127.0.0.1:0", "where to listen")
	flag.Parse()
	latest, err := read(*from)
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(listener.Addr())
	handler := &watcher{latest: latest}
	mux := http.NewServeMux()
	mux.Handle("/watcher", handler)
	mux.Handle("/watcher/", handler)
	ready := encode(latest)
	mux.HandleFunc("/ready", func(response http.ResponseWriter, request *http.Request) {
		response.Header().Set("Content-Type", "application/json")
		response.Header().Set("Content-Length", strconv.Itoa(len(ready)))
		response.Write(ready)
	})
	log.Fatal(http.Serve(listener, mux))
}
