#!/bin/sh
# Installs what virtual machines need beyond npm packages: QEMU and other tools from Debian, and the guest agent, which
# is built here. Run by setup.sh as root. Without root, Warren serves everything except virtual machines.
set -eu
cd "$(dirname "$0")/.."

quiet=no
case "${1-}" in
  --quiet) quiet=yes ;;
  --packages) list_only=yes ;;
esac
. tools/packages.sh

# --- Debian packages --------------------------------------------------------------------------------------------------

# The cargo of Debian 12 is too old; its package cargo-web has a newer one.
new_enough() {
  version=$("$1" --version 2>/dev/null) || return 1
  echo "$version" | awk '{ split($2, v, "."); exit !(v[1] > 1 || v[2] >= 85) }'
}
have_new() { new_enough "$1" || new_enough "/usr/bin/$1"; }

want qemu-system-x86 have qemu-system-x86_64
want qemu-utils have qemu-img
want mmdebstrap have mmdebstrap
want e2fsprogs have mke2fs
want xz-utils have xz
want zstd have zstd
want iproute2 have ip
want nftables have nft
want libnftables1 have_file /usr/lib/*/libnftables.so.1
want debian-archive-keyring have_file /usr/share/keyrings/debian-archive-keyring.gpg
# Makes <ulid>-<port>.localhost resolve for programs that use the C library. Its installation edits /etc/nsswitch.conf.
want libnss-myhostname have_file /usr/lib/*/libnss_myhostname.so.2
want cargo have_new cargo
want gcc have cc
want libc6-dev have_file /usr/lib/*/libc.a
install_packages

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
