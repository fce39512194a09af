// Program katalyst runs parts of Katalyst (katalyst-core).
//
//	katalyst plugins        its CPU and memory plug-ins in its skeleton, until SIGTERM
//	katalyst manager        its resource manager (ORM) with the kubelet's plug-in manager, until SIGTERM
//	katalyst pod-resources  what its client reads from a pod-resources API
//	katalyst zones          the topology zones that its CNR adapter derives from a pod-resources API
//	katalyst checkpoint     what its checkpoint manager reads from a checkpoint; -write writes the checkpoint again
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/klog/v2"
)

func main() {
	commands := map[string]func(arguments []string) error{
		"plugins":       plugins,
		"manager":       manager,
		"pod-resources": podResources,
		"zones":         zones,
		"checkpoint":    checkpoint,
	}
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: katalyst plugins|manager|pod-resources|zones|checkpoint [FLAG ...]")
		os.Exit(2)
	}
	if err := commands[os.Args[1]](os.Args[2:]); err != nil {
		klog.Flush()
		fmt.Fprintf(os.Stderr, "katalyst %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}

func newFlags(name string) *flag.FlagSet {
	return flag.NewFlagSet(name, flag.ExitOnError)
}

func writeJSON(value any) error {
	return json.NewEncoder(os.Stdout).Encode(value)
}

// untilSignal is a context that ends with the process.
func untilSignal() context.Context {
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	return ctx
}
