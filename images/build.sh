#!/usr/bin/env bash
# Build the images data, train and serve with docker or buildah: `make images`, or images/build.sh [NAME ...].
#   BASE         base image with python3 and venv            (default: the Dockerfiles')
#   REGISTRY     prefix of the names                         (default: tripod)
#   TAG          (default: the version in pyproject.toml)
#   WHEELS       folder of local wheels that are preferred   (default: $PIP_FIND_LINKS where it is one, else none)
#   BUILD_ENV    file of shell assignments for pip and uv (an index, certificates); it leaves no trace in the image
#   BUILD_CERTS  folder of CA certificates to show the build, where a proxy re-signs (buildah)
set -euo pipefail
cd "$(dirname "$0")/.."

TAG=${TAG:-$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)}
REGISTRY=${REGISTRY:-tripod}
empty=$(mktemp -d)
trap 'rm -rf "$empty"' EXIT
WHEELS=${WHEELS:-${PIP_FIND_LINKS:-}}
[ -d "$WHEELS" ] || WHEELS=$empty
BUILD_ENV=${BUILD_ENV:-}
[ -n "$BUILD_ENV" ] || { BUILD_ENV=$empty/env; : >"$BUILD_ENV"; }

if docker info >/dev/null 2>&1; then
  build() { docker buildx build --load "$@"; }
elif command -v buildah >/dev/null; then
  build() { buildah build --isolation "${BUILDAH_ISOLATION:-chroot}" --layers ${BUILD_CERTS:+--volume "$BUILD_CERTS:/etc/ssl/certs:ro"} "$@"; }
else
  echo "error: neither a docker engine nor buildah is here; install one (apt-get install buildah)" >&2
  exit 2
fi

for name in "${@:-data train serve}"; do
  for image in $name; do
    echo "building $REGISTRY/$image:$TAG"
    build --build-context "wheels=$WHEELS" --secret "id=build,src=$BUILD_ENV" ${BASE:+--build-arg "BASE=$BASE"} \
      --file "images/$image/Dockerfile" --tag "$REGISTRY/$image:$TAG" .
  done
done
