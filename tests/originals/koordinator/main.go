// Program koordinator answers questions with Koordinator's own code, one JSON value per line.
//
//	koordinator schedule   a case: LoadAwareScheduling filters and scores one node
//	koordinator decode     a NodeMetric: strict decoding by the type of Koordinator
//
// A text "@-90" in a case is the time 90 seconds ago.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientfeatures "k8s.io/client-go/features"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	schedulercache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultbinder"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/queuesort"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
	frameworktesting "k8s.io/kubernetes/pkg/scheduler/testing/framework"
	strictjson "sigs.k8s.io/json"

	slov1alpha1 "github.com/koordinator-sh/koordinator/apis/slo/v1alpha1"
	koordfake "github.com/koordinator-sh/koordinator/pkg/client/clientset/versioned/fake"
	koordinformers "github.com/koordinator-sh/koordinator/pkg/client/informers/externalversions"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/apis/config/scheme"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/frameworkext"
	"github.com/koordinator-sh/koordinator/pkg/scheduler/plugins/loadaware"
)

// Creating the plug-in waits twice for a poll of 100 ms.
const parallel = 16

type scheduleCase struct {
	Args       json.RawMessage         `json:"args"`
	Node       *corev1.Node            `json:"node"`
	NodeMetric *slov1alpha1.NodeMetric `json:"nodeMetric"`
	Pods       []*corev1.Pod           `json:"pods"`
	Reserved   []*corev1.Pod           `json:"reserved"`
	Pod        *corev1.Pod             `json:"pod"`
}

type verdict struct {
	Error  string `json:"error,omitempty"`
	Code   string `json:"code,omitempty"`
	Reason string `json:"reason,omitempty"`
	Score  *int64 `json:"score,omitempty"`
}

type loadAware interface {
	fwk.PreFilterPlugin
	fwk.FilterPlugin
	fwk.ScorePlugin
	fwk.ReservePlugin
}

var relativeTime = regexp.MustCompile(`"@(-?\d+)"`)

// withTimes replaces relative times. Times of Kubernetes have whole seconds.
func withTimes(line []byte, now time.Time) []byte {
	return relativeTime.ReplaceAllFunc(line, func(match []byte) []byte {
		seconds, _ := strconv.Atoi(string(match[2 : len(match)-1]))
		return strconv.AppendQuote(nil, now.Add(time.Duration(seconds)*time.Second).UTC().Format(time.RFC3339))
	})
}

func schedule(line []byte) any {
	result, err := evaluate(withTimes(line, time.Now().Truncate(time.Second)))
	if err != nil {
		return verdict{Error: err.Error()}
	}
	return result
}

func evaluate(line []byte) (result verdict, err error) {
	defer func() {
		if problem := recover(); problem != nil {
			err = fmt.Errorf("panic: %v", problem)
		}
	}()
	var c scheduleCase
	if err := json.Unmarshal(line, &c); err != nil {
		return result, fmt.Errorf("case: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	plugin, snapshot, err := newPlugin(ctx, &c)
	if err != nil {
		return result, err
	}
	for _, pod := range c.Reserved {
		if status := plugin.Reserve(ctx, framework.NewCycleState(), pod, c.Node.Name); !status.IsSuccess() {
			return result, status.AsError()
		}
	}
	info, err := snapshot.NodeInfos().Get(c.Node.Name)
	if err != nil {
		return result, err
	}
	state := framework.NewCycleState()
	if _, status := plugin.PreFilter(ctx, state, c.Pod, []fwk.NodeInfo{info}); !status.IsSuccess() {
		return result, status.AsError()
	}
	filtered := plugin.Filter(ctx, state, c.Pod, info)
	score, status := plugin.Score(ctx, framework.NewCycleState(), c.Pod, info)
	if !status.IsSuccess() {
		return result, status.AsError()
	}
	return verdict{Code: filtered.Code().String(), Reason: filtered.Message(), Score: &score}, nil
}

// newPlugin creates the plug-in with the arguments, NodeMetric and pods of a case, as koord-scheduler does.
func newPlugin(ctx context.Context, c *scheduleCase) (loadAware, fwk.SharedLister, error) {
	args, err := decodeArguments(c.Args)
	if err != nil {
		return nil, nil, err
	}
	nodeMetrics := []runtime.Object{}
	if c.NodeMetric != nil {
		nodeMetrics = append(nodeMetrics, c.NodeMetric)
	}
	pods := []runtime.Object{}
	for i, pod := range c.Pods {
		pod.ResourceVersion = strconv.Itoa(i + 1) // the plug-in compares versions
		pods = append(pods, pod)
	}
	koordClient, client := koordfake.NewSimpleClientset(nodeMetrics...), fake.NewSimpleClientset(pods...)
	koordFactory := koordinformers.NewSharedInformerFactory(koordClient, 0)
	extender, err := frameworkext.NewFrameworkExtenderFactory(
		frameworkext.WithKoordinatorClientSet(koordClient),
		frameworkext.WithKoordinatorSharedInformerFactory(koordFactory),
	)
	if err != nil {
		return nil, nil, err
	}
	snapshot := schedulercache.NewSnapshot(c.Pods, []*corev1.Node{c.Node})
	handle, err := frameworktesting.NewFramework(ctx, []frameworktesting.RegisterPluginFunc{
		frameworktesting.RegisterBindPlugin(defaultbinder.Name, defaultbinder.New),
		frameworktesting.RegisterQueueSortPlugin(queuesort.Name, queuesort.New),
	}, "koord-scheduler",
		frameworkruntime.WithClientSet(client),
		frameworkruntime.WithInformerFactory(informers.NewSharedInformerFactory(client, 0)),
		frameworkruntime.WithSnapshotSharedLister(snapshot),
	)
	if err != nil {
		return nil, nil, err
	}
	// New waits until its informers have delivered all objects.
	plugin, err := frameworkext.PluginFactoryProxy(extender, loadaware.New)(ctx, args, handle)
	if err != nil {
		return nil, nil, err
	}
	return plugin.(loadAware), snapshot, nil
}

// decodeArguments decodes, defaults and converts plug-in arguments as the scheduler does with its configuration file.
func decodeArguments(given json.RawMessage) (runtime.Object, error) {
	fields := map[string]any{}
	if err := json.Unmarshal(given, &fields); err != nil {
		return nil, err
	}
	fields["apiVersion"], fields["kind"] = "kubescheduler.config.k8s.io/v1", loadaware.Name+"Args"
	text, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	args, _, err := scheme.Codecs.UniversalDecoder().Decode(text, nil, nil)
	return args, err
}

type decoded struct {
	Problems   []string                `json:"problems"`
	NodeMetric *slov1alpha1.NodeMetric `json:"nodeMetric"`
}

// decode reports fields that the type does not have, duplicate fields, and invalid values.
func decode(line []byte) any {
	result := decoded{Problems: []string{}, NodeMetric: &slov1alpha1.NodeMetric{}}
	strict, err := strictjson.UnmarshalStrict(line, result.NodeMetric)
	if err != nil {
		strict = append(strict, err)
	}
	for _, problem := range strict {
		result.Problems = append(result.Problems, problem.Error())
	}
	return result
}

// answerLines answers the lines of standard input in parallel; the answers are in the order of the lines.
func answerLines(answer func([]byte) any) error {
	pending := make(chan chan any, parallel)
	input := bufio.NewScanner(os.Stdin)
	input.Buffer(nil, 1<<26)
	go func() {
		defer close(pending)
		for input.Scan() {
			line, result := bytes.Clone(input.Bytes()), make(chan any, 1)
			pending <- result
			go func() { result <- answer(line) }()
		}
	}()
	output := json.NewEncoder(os.Stdout)
	for result := range pending {
		if err := output.Encode(<-result); err != nil {
			return err
		}
	}
	return input.Err()
}

func main() {
	answers := map[string]func([]byte) any{"schedule": schedule, "decode": decode}
	if len(os.Args) != 2 || answers[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: koordinator schedule|decode")
		os.Exit(2)
	}
	klog.LogToStderr(false)
	klog.SetOutput(io.Discard)
	metrics.Register()
	// The fake clients do not implement streamed lists.
	if gates, ok := clientfeatures.FeatureGates().(interface {
		Set(clientfeatures.Feature, bool) error
	}); ok {
		_ = gates.Set(clientfeatures.WatchListClient, false)
	}
	if err := answerLines(answers[os.Args[1]]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
