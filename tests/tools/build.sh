#!/usr/bin/env bash
# Build the real peers that tests use, from pinned Go modules, into the folder $1:
#   argo          the Argo Workflows command line, for `argo lint --offline`
#   crds/         Argo's full CRD schemas, from the same module
#   versitygw     an S3 server
# What is there in the pinned version already is not built again.
set -euo pipefail

ARGO=github.com/argoproj/argo-workflows/v4@v4.0.7
VERSITYGW=github.com/versity/versitygw/cmd/versitygw@v1.8.0

out=${1:?usage: build.sh FOLDER}
mkdir -p "$out"
command -v go >/dev/null || { echo "error: go is not installed; 'make tools' needs Go 1.26 or newer (make test does not)" >&2; exit 2; }

built() { [ -e "$out/$1" ] && [ "$(cat "$out/.$1.version" 2>/dev/null)" = "$2" ]; }

if ! built versitygw "$VERSITYGW"; then
  echo "building $VERSITYGW"
  GOBIN="$out" CGO_ENABLED=0 go install -trimpath -ldflags "-s -w" "$VERSITYGW"
  echo "$VERSITYGW" >"$out/.versitygw.version"
fi

if ! built argo "$ARGO"; then
  echo "building $ARGO"
  module=$(cd "$(mktemp -d)" && go mod download -json "$ARGO" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
  source=$(mktemp -d)
  trap 'rm -rf "$source"' EXIT
  cp -r "$module/." "$source"
  chmod -R u+w "$source"
  # the module zip lacks a symbolic link and the built web page, which the server part embeds
  cp "$source/workflow/executor/osspecific/signal_darwin.go" "$source/workflow/executor/osspecific/signal_linux.go"
  mkdir -p "$source/ui/dist/app"
  echo >"$source/ui/dist/app/index.html"
  (cd "$source" && CGO_ENABLED=0 go build -trimpath -ldflags "-s -w" -o "$out/argo" ./cmd/argo)
  rm -rf "$out/crds"
  cp -r "$source/manifests/base/crds/full" "$out/crds"
  echo "$ARGO" >"$out/.argo.version"
fi
