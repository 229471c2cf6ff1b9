// Clock guard: says what chronyd of this node says, as a label and a condition of the node and as
// metrics. It runs on every node and never ends because of a clock.
package main

import (
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Verdicts, as the label has them.
const (
	clockOK      = "ok"
	clockOff     = "off"
	clockUnknown = "unknown"
)

type settings struct {
	node       string
	chrony     string
	maxOffset  time.Duration
	interval   time.Duration
	heartbeat  time.Duration
	localClock bool
}

// verdict is one reading, judged.
type verdict struct {
	state   string
	reason  string
	message string
	reading *tracking
}

// localReference is the reference id of a daemon that serves its own clock.
const localReference = 0x7F7F0101

func judge(reading *tracking, failure error, now time.Time, s settings) verdict {
	if failure != nil {
		// A dead daemon disciplines nothing, yet nothing is known about the clock either.
		return verdict{clockUnknown, "ChronyUnreachable", failure.Error(), nil}
	}
	off := func(reason, format string, values ...any) verdict {
		return verdict{clockOff, reason, fmt.Sprintf(format, values...), reading}
	}
	local := reading.referenceID == localReference
	bound := reading.rootDelay/2 + reading.rootDispersion
	limit := s.maxOffset.Seconds()
	switch {
	// Unsynchronised comes first: the offset reads as zero then.
	case reading.leap > 2:
		return off("NotSynchronised", "chronyd is not synchronised to any source")
	case reading.referenceID == 0:
		return off("NoReference", "chronyd has no reference")
	case local && !s.localClock:
		return off("LocalReference", "chronyd serves its own clock, which only the time server may")
	case reading.correction >= limit || reading.correction <= -limit:
		return off("OffsetTooLarge", "the clock is %.6f s off, expected less than %g s",
			reading.correction, limit)
	case !local && bound >= 2*limit:
		return off("ErrorBoundTooLarge", "the error may be as large as %.6f s, expected less than %g s",
			bound, 2*limit)
	}
	age := now.Sub(reading.referenceTime).Seconds()
	if !local && reading.updateInterval > 0 && age >= 10*reading.updateInterval {
		return off("Stale", "the last measurement is %.0f s old, they come every %.0f s",
			age, reading.updateInterval)
	}
	return verdict{clockOK, "Synchronised",
		fmt.Sprintf("offset %.6f s, error below %.6f s", reading.correction, bound), reading}
}

// guard keeps the current verdict for those who ask over HTTP.
type guard struct {
	settings
	mutex   sync.Mutex
	current verdict
	ticked  time.Time
}

func (g *guard) look() verdict {
	reading, err := readTracking(g.chrony, time.Second, 3)
	seen := judge(reading, err, time.Now(), g.settings)
	g.mutex.Lock()
	defer g.mutex.Unlock()
	g.current, g.ticked = seen, time.Now()
	return seen
}

func (g *guard) state() (verdict, time.Time) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	return g.current, g.ticked
}

func (g *guard) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) {
		if _, ticked := g.state(); time.Since(ticked) > 10*g.interval {
			http.Error(w, "the loop stands still", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "alive")
	})
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		seen, _ := g.state()
		if seen.state != clockOK {
			http.Error(w, seen.reason+": "+seen.message, http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, seen.message)
	})
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) {
		seen, _ := g.state()
		w.Header().Set("Content-Type", "text/plain; version=0.0.4")
		fmt.Fprint(w, metrics(g.node, seen))
	})
	return mux
}

func metrics(node string, seen verdict) string {
	var text strings.Builder
	gauge := func(name, help string, value float64) {
		fmt.Fprintf(&text, "# HELP %s %s\n# TYPE %s gauge\n%s{node=%q} %g\n",
			name, help, name, name, node, value)
	}
	flag := func(is bool) float64 {
		if is {
			return 1
		}
		return 0
	}
	gauge("railweld_clock_ok", "1 if the clock is synchronised and near enough.",
		flag(seen.state == clockOK))
	gauge("railweld_clock_daemon_up", "1 if chronyd answers.", flag(seen.reading != nil))
	// Without a reading there is no offset; zero would look perfect.
	if seen.reading != nil {
		gauge("railweld_clock_synchronised", "1 if chronyd follows a source.",
			flag(seen.reading.leap <= 2))
		gauge("railweld_clock_stratum", "Stratum.", float64(seen.reading.stratum))
		if seen.reading.leap <= 2 {
			gauge("railweld_clock_offset_seconds", "The clock's distance from its source.",
				seen.reading.correction)
			gauge("railweld_clock_error_bound_seconds", "Half the root delay and the dispersion.",
				seen.reading.rootDelay/2+seen.reading.rootDispersion)
		}
	}
	return text.String()
}

// publisher tells the API server what has changed, and now and then that nothing has.
type publisher struct {
	settings
	api       *apiServer
	published string
	reason    string
	candidate string
	since     time.Time
	last      time.Time
}

func (p *publisher) tell(seen verdict, now time.Time) error {
	changed := seen.state != p.published
	if changed && p.published != "" && p.candidate != seen.state {
		// Twice in a row, so that a clock at the limit does not write all the time.
		p.candidate = seen.state
		return nil
	}
	p.candidate = ""
	if !changed && seen.reason == p.reason && now.Sub(p.last) < p.heartbeat {
		return nil
	}
	if changed {
		p.since = now
		if err := p.api.patchLabel(p.node, seen.state); err != nil {
			return err
		}
	}
	if err := p.api.patchCondition(p.node, seen, p.since, now); err != nil {
		return err
	}
	if changed || seen.reason != p.reason {
		log.Printf("clock %s: %s: %s", seen.state, seen.reason, seen.message)
	}
	p.published, p.reason, p.last = seen.state, seen.reason, now
	return nil
}

func main() {
	log.SetFlags(0)
	s := settings{}
	var listen, locals string
	api := apiServer{}
	flag.StringVar(&s.node, "node", "", "name of this node")
	flag.StringVar(&s.chrony, "chrony", "127.0.0.1:323", "where chronyd answers")
	flag.DurationVar(&s.maxOffset, "max-offset", 100*time.Millisecond, "more is `off`")
	flag.DurationVar(&s.interval, "interval", 10*time.Second, "how often to look")
	flag.DurationVar(&s.heartbeat, "heartbeat", 5*time.Minute, "how often to say that nothing changed")
	flag.StringVar(&locals, "local-clock-nodes", "", "nodes that may serve their own clock")
	flag.StringVar(&listen, "listen", ":9947", "address of metrics and probes")
	flag.StringVar(&api.url, "api", "", "API server; default: the cluster's own")
	flag.StringVar(&api.tokenFile, "token-file", serviceAccount+"/token", "bearer token")
	flag.StringVar(&api.authorityFile, "ca-file", serviceAccount+"/ca.crt", "the API server's CA")
	flag.Parse()
	if s.node == "" || s.maxOffset <= 0 || s.interval <= 0 {
		log.Fatal("clock-guard: --node, a positive --max-offset and a positive --interval are needed")
	}
	s.localClock = slices.Contains(strings.Split(locals, ","), s.node)
	if err := api.prepare(); err != nil {
		log.Fatalf("clock-guard: %v", err)
	}
	g := &guard{settings: s, ticked: time.Now(),
		current: verdict{clockUnknown, "Starting", "not looked yet", nil}}
	listener, err := net.Listen("tcp", listen)
	if err != nil {
		log.Fatalf("clock-guard: %v", err)
	}
	server := &http.Server{Handler: g.handler(), ReadHeaderTimeout: 5 * time.Second}
	go func() { log.Fatal(server.Serve(listener)) }()
	p := &publisher{settings: s, api: &api}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		// At once, also while chronyd is being waited for; there is nothing to finish.
		<-stop
		os.Exit(0)
	}()
	for ticker := time.NewTicker(s.interval); ; <-ticker.C {
		if err := p.tell(g.look(), time.Now()); err != nil {
			log.Printf("not published, next try in %s: %v", s.interval, err)
		}
	}
}
