// What pods of the lab's own tests run: `say TEXT FILE`, `env PREFIX`, `get URL`, `resolve NAME`, `sleep SECONDS`.
package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(words []string) error {
	switch words[0] {
	case "say":
		fmt.Println(words[1])
		return os.WriteFile(words[2], []byte(words[1]), 0o644)
	case "env":
		for _, entry := range os.Environ() {
			if strings.HasPrefix(entry, words[1]) {
				fmt.Println(entry)
			}
		}
	case "get":
		answer, err := http.Get(words[1])
		if err != nil {
			return err
		}
		fmt.Println(answer.StatusCode)
	case "resolve":
		found, err := net.LookupHost(words[1])
		if err != nil {
			return err
		}
		fmt.Println(found)
	case "sleep":
		wait, err := time.ParseDuration(words[1] + "s")
		if err != nil {
			return err
		}
		time.Sleep(wait)
	default:
		return fmt.Errorf("got %q, allowed are say, env, get, resolve, sleep", words[0])
	}
	return nil
}
