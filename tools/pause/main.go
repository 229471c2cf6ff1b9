// The sandbox process of a pod in the lab: holds the namespaces, reaps orphans, ends when told.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	// `kubeadm upgrade` tries the cluster with a Job that runs the image like this, and waits for its end.
	if len(os.Args) > 1 && os.Args[1] == "-v" {
		fmt.Println("pause of railweld's lab")
		return
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for received := range signals {
		if received != syscall.SIGCHLD {
			return
		}
		// In a shared process namespace this process is init: children without a parent are its.
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
}
