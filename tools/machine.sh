#!/bin/sh
# Installs what virtual machines need beyond npm packages: QEMU and other tools from Debian, and the guest agent, which
# is built here. Run by setup.sh as root. Without root, Warren serves everything except virtual machines.
set -eu
cd "$(dirname "$0")/.."

quiet=no
[ "${1-}" = --quiet ] && quiet=yes
print() { [ "$quiet" = yes ] || printf '%s\n' "$*"; }
die() {
  printf 'set-up: %s\n' "$1" >&2
  printf '        %s\n' "$2" >&2
  exit 1
}
retry='then run the same command again.'
seconds_since() { echo $(($(date +%s) - $1)); }

# --- Debian packages --------------------------------------------------------------------------------------------------

have() { command -v "$1" >/dev/null 2>&1; }
have_file() { for file in "$@"; do [ -e "$file" ] && return 0; done; return 1; }

packages=
need() { packages="$packages $1"; }
have qemu-system-x86_64 || need qemu-system-x86
have qemu-img || need qemu-utils
have mmdebstrap || need mmdebstrap
have mke2fs || need e2fsprogs
have xz || need xz-utils
have zstd || need zstd
have ip || need iproute2
have nft || need nftables
have_file /usr/lib/*/libnftables.so.1 || need libnftables1
have_file /usr/share/keyrings/debian-archive-keyring.gpg || need debian-archive-keyring

# The cargo of Debian 12 is too old; its package cargo-web has a newer one.
new_enough() {
  version=$("$1" --version 2>/dev/null) || return 1
  echo "$version" | awk '{ split($2, v, "."); exit !(v[1] > 1 || v[2] >= 85) }'
}
new_enough cargo || new_enough /usr/bin/cargo || need cargo
have cc || need gcc
have_file /usr/lib/*/libc.a || need libc6-dev

install_packages() {
  have apt-get || die "these Debian packages are missing:$packages" "Install the equivalent packages of your system, $retry"
  started=$(date +%s)
  print "Installing Debian packages:$packages …"
  log=$(mktemp)
  export DEBIAN_FRONTEND=noninteractive
  if ! apt-get update >"$log" 2>&1; then
    tail -5 "$log" >&2
    die 'apt-get update failed; see the output above.' "Fix the cause, $retry"
  fi
  case "$packages" in
    *' cargo'*)
      if apt-cache show cargo-web >/dev/null 2>&1; then packages=$(echo "$packages" | sed 's/ cargo/ cargo-web/'); fi ;;
  esac
  # shellcheck disable=SC2086  # a list of names
  if ! apt-get install -y --no-install-recommends $packages >"$log" 2>&1; then
    tail -15 "$log" >&2
    die "apt-get failed to install$packages; see the output above." "Fix the cause, $retry"
  fi
  rm -f "$log"
  print "Installed Debian packages in $(seconds_since "$started") s."
}
[ -z "$packages" ] || install_packages

# --- The guest agent --------------------------------------------------------------------------------------------------

cache=${XDG_CACHE_HOME:-$HOME/.cache}/warren/guest-agent
agent=guest-agent/target/warren/guest-agent
wanted=$(find guest-agent -path guest-agent/target -prune -o -type f -print | LC_ALL=C sort | xargs sha256sum | sha256sum | cut -c1-32)

if [ ! -x "$agent" ] || [ "$(cat "$agent.stamp" 2>/dev/null)" != "$wanted" ]; then
  mkdir -p "$(dirname "$agent")" "$cache"
  if [ ! -x "$cache/$wanted" ]; then
    started=$(date +%s)
    print 'Building the guest agent …'
    log=$(mktemp)
    # If the first cargo on the PATH is too old or broken, use Debian's.
    new_enough cargo || PATH=/usr/bin:$PATH
    if ! (cd guest-agent && CARGO_TARGET_DIR="$cache/target" cargo build --release --locked -j2 >"$log" 2>&1); then
      tail -20 "$log" >&2
      die 'failed to build the guest agent; see the output above.' "Fix the cause, $retry"
    fi
    cp "$cache"/target/*/release/guest-agent "$cache/$wanted.new.$$"
    mv "$cache/$wanted.new.$$" "$cache/$wanted"
    rm -f "$log"
    print "Built the guest agent in $(seconds_since "$started") s."
  fi
  cp "$cache/$wanted" "$agent.new.$$"
  mv "$agent.new.$$" "$agent"
  printf '%s' "$wanted" >"$agent.stamp"
fi
