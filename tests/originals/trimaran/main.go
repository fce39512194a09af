// Program trimaran scores nodes with the Trimaran plug-ins of scheduler-plugins, one JSON case per line. A text "@-90"
// in a case is the unix time 90 seconds ago, as a number.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientfeatures "k8s.io/client-go/features"
	"k8s.io/client-go/informers"
	informerscore "k8s.io/client-go/informers/core"
	informerscorev1 "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	schedulercache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultbinder"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/queuesort"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
	frameworktesting "k8s.io/kubernetes/pkg/scheduler/testing/framework"

	"sigs.k8s.io/scheduler-plugins/apis/config/scheme"
	"sigs.k8s.io/scheduler-plugins/pkg/trimaran/loadvariationriskbalancing"
	"sigs.k8s.io/scheduler-plugins/pkg/trimaran/lowriskovercommitment"
	"sigs.k8s.io/scheduler-plugins/pkg/trimaran/peaks"
	"sigs.k8s.io/scheduler-plugins/pkg/trimaran/targetloadpacking"
)

var factories = map[string]frameworkruntime.PluginFactory{
	targetloadpacking.Name:          targetloadpacking.New,
	loadvariationriskbalancing.Name: loadvariationriskbalancing.New,
	lowriskovercommitment.Name:      lowriskovercommitment.New,
	peaks.Name:                      peaks.New,
}

type scoreCase struct {
	Args    map[string]map[string]any `json:"args"` // by plug-in
	Watcher json.RawMessage           `json:"watcher"`
	Nodes   []*corev1.Node            `json:"nodes"`
	Pods    []*corev1.Pod             `json:"pods"`
	Pod     *corev1.Pod               `json:"pod"`
}

// pluginScores are by node: Raw of Score, Final after NormalizeScore.
type pluginScores struct {
	Error string           `json:"error,omitempty"`
	Raw   map[string]int64 `json:"raw,omitempty"`
	Final map[string]int64 `json:"final,omitempty"`
}

var relativeTime = regexp.MustCompile(`"@(-?\d+)"`)

func withTimes(line []byte, now time.Time) []byte {
	return relativeTime.ReplaceAllFunc(line, func(match []byte) []byte {
		seconds, _ := strconv.ParseInt(string(match[2:len(match)-1]), 10, 64)
		return strconv.AppendInt(nil, now.Unix()+seconds, 10)
	})
}

// answer scores the nodes of a case with each plug-in that the case has arguments for.
func answer(line []byte) (map[string]pluginScores, error) {
	var c scoreCase
	if err := json.Unmarshal(withTimes(line, time.Now()), &c); err != nil {
		return nil, fmt.Errorf("case: %w", err)
	}
	watcher := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/watcher" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(c.Watcher)
	}))
	defer watcher.Close()
	found := map[string]pluginScores{}
	for name := range c.Args {
		scores, err := score(&c, name, watcher.URL)
		if err != nil {
			scores = pluginScores{Error: err.Error()}
		}
		found[name] = scores
	}
	return found, nil
}

func score(c *scoreCase, name string, address string) (result pluginScores, err error) {
	defer func() {
		if problem := recover(); problem != nil {
			err = fmt.Errorf("panic: %v", problem)
		}
	}()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	args, err := decodeArguments(name, c.Args[name], address)
	if err != nil {
		return result, err
	}
	pods := []runtime.Object{}
	for _, pod := range c.Pods {
		pods = append(pods, pod)
	}
	client := fake.NewSimpleClientset(pods...)
	factory := &observedFactory{SharedInformerFactory: informers.NewSharedInformerFactory(client, 0)}
	handle, err := frameworktesting.NewFramework(ctx, []frameworktesting.RegisterPluginFunc{
		frameworktesting.RegisterBindPlugin(defaultbinder.Name, defaultbinder.New),
		frameworktesting.RegisterQueueSortPlugin(queuesort.Name, queuesort.New),
	}, "kube-scheduler", frameworkruntime.WithClientSet(client), frameworkruntime.WithInformerFactory(factory))
	if err != nil {
		return result, err
	}
	plugin, err := factories[name](ctx, args, handle)
	if err != nil {
		return result, err
	}
	factory.Start(ctx.Done())
	for _, delivered := range factory.delivered {
		for !delivered() {
			time.Sleep(time.Millisecond)
		}
	}
	return scoreNodes(ctx, c, plugin.(framework.ScorePlugin))
}

func scoreNodes(ctx context.Context, c *scoreCase, plugin framework.ScorePlugin) (pluginScores, error) {
	result := pluginScores{Raw: map[string]int64{}, Final: map[string]int64{}}
	snapshot := schedulercache.NewSnapshot(c.Pods, c.Nodes)
	state := framework.NewCycleState()
	if preparing, ok := plugin.(framework.PreScorePlugin); ok {
		if status := preparing.PreScore(ctx, state, c.Pod, nil); !status.IsSuccess() {
			return result, status.AsError()
		}
	}
	scores := framework.NodeScoreList{}
	for _, node := range c.Nodes {
		info, err := snapshot.NodeInfos().Get(node.Name)
		if err != nil {
			return result, err
		}
		raw, status := plugin.Score(ctx, state, c.Pod, info)
		if !status.IsSuccess() {
			return result, status.AsError()
		}
		result.Raw[node.Name] = raw
		scores = append(scores, framework.NodeScore{Name: node.Name, Score: raw})
	}
	if extensions := plugin.ScoreExtensions(); extensions != nil {
		if status := extensions.NormalizeScore(ctx, state, c.Pod, scores); !status.IsSuccess() {
			return result, status.AsError()
		}
	}
	for _, each := range scores {
		result.Final[each.Name] = each.Score
	}
	return result, nil
}

// decodeArguments decodes, defaults and converts plug-in arguments as the scheduler does with its configuration file.
func decodeArguments(name string, given map[string]any, address string) (runtime.Object, error) {
	fields := map[string]any{"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": name + "Args"}
	if name == peaks.Name {
		fields["WatcherAddress"] = address // the JSON name in this version
	} else {
		fields["watcherAddress"] = address
	}
	for key, value := range given {
		fields[key] = value
	}
	text, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	args, _, err := scheme.Codecs.UniversalDecoder().Decode(text, nil, nil)
	return args, err
}

// observedFactory records the event handlers that are added to the informer of pods: the plug-in does not wait until
// its handler has received all pods.
type observedFactory struct {
	informers.SharedInformerFactory
	delivered []cache.InformerSynced
}

func (f *observedFactory) Core() informerscore.Interface {
	return observedCore{f.SharedInformerFactory.Core(), f}
}

type observedCore struct {
	informerscore.Interface
	factory *observedFactory
}

func (c observedCore) V1() informerscorev1.Interface {
	return observedV1{c.Interface.V1(), c.factory}
}

type observedV1 struct {
	informerscorev1.Interface
	factory *observedFactory
}

func (v observedV1) Pods() informerscorev1.PodInformer {
	return observedPods{v.Interface.Pods(), v.factory}
}

type observedPods struct {
	informerscorev1.PodInformer
	factory *observedFactory
}

func (p observedPods) Informer() cache.SharedIndexInformer {
	return observedInformer{p.PodInformer.Informer(), p.factory}
}

type observedInformer struct {
	cache.SharedIndexInformer
	factory *observedFactory
}

func (i observedInformer) AddEventHandler(handler cache.ResourceEventHandler) (
	cache.ResourceEventHandlerRegistration, error,
) {
	registration, err := i.SharedIndexInformer.AddEventHandler(handler)
	if err == nil {
		i.factory.delivered = append(i.factory.delivered, registration.HasSynced)
	}
	return registration, err
}

// answerLines answers one line after the other: TargetLoadPacking keeps its arguments in package variables.
func answerLines(output io.Writer) error {
	input := bufio.NewScanner(os.Stdin)
	input.Buffer(nil, 1<<26)
	for input.Scan() {
		found, err := answer(bytes.Clone(input.Bytes()))
		if err != nil {
			return err
		}
		if err := json.NewEncoder(output).Encode(found); err != nil {
			return err
		}
	}
	return input.Err()
}

func main() {
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	metrics.Register()
	// The fake client does not implement streamed lists.
	if gates, ok := clientfeatures.FeatureGates().(interface {
		Set(clientfeatures.Feature, bool) error
	}); ok {
		_ = gates.Set(clientfeatures.WatchListClient, false)
	}
	output := os.Stdout
	os.Stdout, _ = os.Open(os.DevNull) // Peaks prints its arguments
	if err := answerLines(output); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
