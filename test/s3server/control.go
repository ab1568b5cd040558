package main

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

func controlHandler(s *sessions, f *faults, g *gate) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /sessions", func(w http.ResponseWriter, r *http.Request) {
		ttl, err := time.ParseDuration(r.FormValue("ttl"))
		if err != nil || ttl == 0 {
			http.Error(w, "ttl must be a duration, as in 8s; one in the past is expired", http.StatusBadRequest)
			return
		}
		write(w, s.add(scopeOf(r), ttl))
	})
	mux.HandleFunc("POST /keys", func(w http.ResponseWriter, r *http.Request) {
		write(w, s.add(scopeOf(r), 0))
	})
	revoke := func(w http.ResponseWriter, r *http.Request) {
		if !s.revoke(r.PathValue("key")) {
			http.Error(w, "there is no such access key", http.StatusNotFound)
		}
	}
	mux.HandleFunc("DELETE /sessions/{key}", revoke)
	mux.HandleFunc("DELETE /keys/{key}", revoke)
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) { write(w, g.stats()) })
	mux.HandleFunc("POST /fault", func(w http.ResponseWriter, r *http.Request) {
		times := 0
		if text := r.FormValue("times"); text != "" {
			var err error
			if times, err = strconv.Atoi(text); err != nil || times <= 0 {
				http.Error(w, "times must be a positive number", http.StatusBadRequest)
				return
			}
		}
		if err := f.begin(r.FormValue("kind"), r.FormValue("operation"), times); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	})
	mux.HandleFunc("DELETE /fault", func(w http.ResponseWriter, _ *http.Request) {
		if err := f.end(); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	return mux
}

func scopeOf(r *http.Request) scope {
	return scope{bucket: r.FormValue("bucket"), readOnly: r.FormValue("mode") == "ro"}
}

func write(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value) // the client has gone
}
