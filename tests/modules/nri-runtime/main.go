// Command nri-runtime is the runtime side of NRI for tests: containerd/nri's pkg/adaptation, driven by JSON.
//
// It reads one command per line from standard input and writes one answer per line to standard output. Between the
// answers it writes events: {"event":"plugins","count":1} when the number of connected plug-ins changes,
// {"event":"synchronized"} after a plug-in knows all containers, and {"event":"update",...} when a plug-in asks for
// updates of containers. Messages of the library are on standard error. It ends with the end of its input.
//
// As in containerd, one lock is held during each request to the plug-ins and during each update that a plug-in asks for.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	validator "github.com/containerd/nri/plugins/default-validator/builtin"
	rspec "github.com/opencontainers/runtime-spec/specs-go"
)

// command is a line of the input; Do names the function in the map `verbs`.
type command struct {
	Do         string                `json:"do"`
	ID         string                `json:"id"`
	Pod        *pod                  `json:"pod"`
	Container  *container            `json:"container"`
	Pods       []*pod                `json:"pods"`
	Containers []*container          `json:"containers"`
	Resources  *rspec.LinuxResources `json:"resources"`
	Timeout    float64               `json:"timeout"`
	Fail       []string              `json:"fail"`
}

// answer is a line of the output. Ms is the time of the request to the plug-ins, without that of other requests.
type answer struct {
	Error      string       `json:"error,omitempty"`
	Ms         float64      `json:"ms"`
	Container  *container   `json:"container,omitempty"`
	Updates    []*update    `json:"updates,omitempty"`
	Evictions  []*eviction  `json:"evictions,omitempty"`
	Pods       []*pod       `json:"pods,omitempty"`
	Containers []*container `json:"containers,omitempty"`
}

// event is a line of the output that is no answer.
type event struct {
	Event   string    `json:"event"`
	Count   int       `json:"count"`
	Updates []*update `json:"updates,omitempty"`
	Failed  []string  `json:"failed,omitempty"`
}

// lines writes JSON values, one per line, from any goroutine.
type lines struct {
	sync.Mutex
	encoder *json.Encoder
}

func (l *lines) write(value any) {
	l.Lock()
	defer l.Unlock()
	if err := l.encoder.Encode(value); err != nil {
		os.Exit(1) // nobody reads any more
	}
}

// counter writes an event when the number of plug-ins changes.
type counter struct {
	sync.Mutex
	out  *lines
	last int
}

func (c *counter) UpdatePluginCount(count int) {
	c.Lock()
	defer c.Unlock()
	if count != c.last {
		c.last = count
		c.out.write(event{Event: "plugins", Count: count})
	}
}

func (c *counter) RecordPluginInvocation(_, _ string, _ error)              {}
func (c *counter) RecordPluginLatency(_, _ string, _ time.Duration)         {}
func (c *counter) RecordPluginAdjustments(_, _ string, _ *adjust, _, _ int) {}

func main() {
	socket := flag.String("socket", "", "path of the NRI socket")
	required := flag.String("required", "", "plug-ins that the default validator requires, separated by commas")
	tolerate := flag.String("tolerate", "", "annotation with which a container tolerates a missing plug-in")
	timeout := flag.Duration("timeout", adaptation.DefaultPluginRequestTimeout, "timeout of a request")
	registration := flag.Duration("registration", adaptation.DefaultPluginRegistrationTimeout, "timeout of registration")
	flag.Parse()
	adaptation.SetPluginRequestTimeout(*timeout)
	adaptation.SetPluginRegistrationTimeout(*registration)

	out := &lines{encoder: json.NewEncoder(os.Stdout)}
	config := &validator.DefaultValidatorConfig{TolerateMissingAnnotation: *tolerate}
	if *required != "" {
		config.Enable, config.RequiredPlugins = true, strings.Split(*required, ",")
	}
	r := newRuntime(out)
	if err := r.open(*socket, config); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	input := bufio.NewScanner(os.Stdin)
	input.Buffer(nil, 64<<20)
	for input.Scan() {
		var c command
		if err := json.Unmarshal(input.Bytes(), &c); err != nil {
			out.write(answer{Error: err.Error()})
			continue
		}
		out.write(r.do(&c))
	}
	r.nri.Stop()
}
