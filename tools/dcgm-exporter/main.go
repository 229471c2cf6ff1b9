// Stand-in for NVIDIA's dcgm-exporter, for the lab only: serves the fields of its list for as many
// GPUs as it is told of, with values of GPUs at rest.
package main

import (
	"bufio"
	"fmt"
	"log"
	"net/http"
	"os"
	"strings"
)

type counter struct{ field, kind, help string }

func counters(path string) ([]counter, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var found []counter
	for lines := bufio.NewScanner(file); lines.Scan(); {
		parts := strings.SplitN(lines.Text(), ",", 3)
		if len(parts) == 3 && !strings.HasPrefix(parts[0], "#") {
			found = append(found, counter{strings.TrimSpace(parts[0]), strings.TrimSpace(parts[1]),
				strings.TrimSpace(parts[2])})
		}
	}
	return found, nil
}

var atRest = map[string]float64{"DCGM_FI_DEV_GPU_TEMP": 31, "DCGM_FI_DEV_MEMORY_TEMP": 38,
	"DCGM_FI_DEV_POWER_USAGE": 62, "DCGM_FI_DEV_SM_CLOCK": 210, "DCGM_FI_DEV_FB_FREE": 81050}

func main() {
	log.SetFlags(0)
	list, err := counters(os.Getenv("DCGM_EXPORTER_COLLECTORS"))
	if err != nil {
		log.Fatalf("dcgm-exporter (stand-in): %v", err)
	}
	gpus := 8
	if text := os.Getenv("RAILWELD_LAB_GPUS"); text != "" {
		if _, err := fmt.Sscan(text, &gpus); err != nil {
			log.Fatalf("RAILWELD_LAB_GPUS: found %q, expected a number", text)
		}
	}
	host, _ := os.Hostname()
	http.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) {
		for _, each := range list {
			fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", each.field, each.help, each.field, each.kind)
			for gpu := range gpus {
				fmt.Fprintf(w, "%s{gpu=\"%d\",Hostname=%q} %g\n", each.field, gpu, host, atRest[each.field])
			}
		}
	})
	http.HandleFunc("/health", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok (stand-in)") })
	listen := os.Getenv("DCGM_EXPORTER_LISTEN")
	if listen == "" {
		listen = ":9400"
	}
	log.Printf("dcgm-exporter (stand-in): %d fields of %d GPUs at %s", len(list), gpus, listen)
	log.Fatal(http.ListenAndServe(listen, nil))
}
