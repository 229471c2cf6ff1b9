package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

const (
	serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"
	clockLabel     = "railweld.io/clock"
	clockCondition = "ClockSynchronised"
)

// apiServer sends the two patches that this program makes.
type apiServer struct {
	url           string
	tokenFile     string
	authorityFile string
	client        *http.Client
}

func (a *apiServer) prepare() error {
	a.client = &http.Client{Timeout: 10 * time.Second}
	if a.url == "" {
		host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
		if host == "" {
			return errors.New("not in a pod (KUBERNETES_SERVICE_HOST is not set), and no --api given")
		}
		a.url = "https://" + net.JoinHostPort(host, port)
	}
	if !strings.HasPrefix(a.url, "https://") {
		return nil
	}
	authority, err := os.ReadFile(a.authorityFile)
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authority) {
		return fmt.Errorf("%s has no certificate", a.authorityFile)
	}
	a.client.Transport = &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	return nil
}

func (a *apiServer) patchLabel(node, state string) error {
	return a.patch("/api/v1/nodes/"+url.PathEscape(node), "application/merge-patch+json",
		map[string]any{"metadata": map[string]any{"labels": map[string]string{clockLabel: state}}})
}

func (a *apiServer) patchCondition(node string, seen verdict, since, now time.Time) error {
	status := map[string]string{clockOK: "True", clockOff: "False", clockUnknown: "Unknown"}
	// A strategic merge: conditions of other types stay as they are.
	return a.patch("/api/v1/nodes/"+url.PathEscape(node)+"/status",
		"application/strategic-merge-patch+json",
		map[string]any{"status": map[string]any{"conditions": []map[string]string{{
			"type":               clockCondition,
			"status":             status[seen.state],
			"reason":             seen.reason,
			"message":            seen.message,
			"lastHeartbeatTime":  now.UTC().Format(time.RFC3339),
			"lastTransitionTime": since.UTC().Format(time.RFC3339),
		}}}})
}

func (a *apiServer) patch(path, kind string, body any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	request, err := http.NewRequest(http.MethodPatch, a.url+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", kind)
	// Read every time: the kubelet renews it.
	if token, err := os.ReadFile(a.tokenFile); err == nil {
		request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	response, err := a.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, _ := io.ReadAll(io.LimitReader(response.Body, 4096))
	if response.StatusCode >= http.StatusBadRequest {
		return fmt.Errorf("PATCH %s: %s: %s", path, response.Status, strings.TrimSpace(string(answer)))
	}
	return nil
}
