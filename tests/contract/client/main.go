// Client asks each address given as an argument for its metrics, through the client that the Trimaran plug-ins use, and
// prints what it decoded: one JSON object a line, {"error": "…"} or {"metrics": …}, in the order of the arguments.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/paypal/load-watcher/pkg/watcher"
	"github.com/paypal/load-watcher/pkg/watcher/api"
)

type outcome struct {
	Error   string                  `json:"error,omitempty"`
	Metrics *watcher.WatcherMetrics `json:"metrics,omitempty"`
}

func ask(address string) outcome {
	client, err := api.NewServiceClient(address)
	if err != nil {
		return outcome{Error: err.Error()}
	}
	metrics, err := client.GetLatestWatcherMetrics()
	if err != nil {
		return outcome{Error: err.Error()}
	}
	return outcome{Metrics: metrics}
}

func main() {
	lines := json.NewEncoder(os.Stdout)
	for _, address := range os.Args[1:] {
		if err := lines.Encode(ask(address)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}
