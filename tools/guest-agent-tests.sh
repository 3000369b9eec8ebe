#!/bin/sh
# The tests of the guest agent, by cargo. They are built from a copy of the sources in the cache, in which only what
# differs is written: cargo goes by place and time of files, so a fresh clone would otherwise build everything anew, and
# each clone would leave half a gigabyte behind.
set -eu
cd "$(dirname "$0")/.."

new_enough() {
  version=$("$1" --version 2>/dev/null) || return 1
  echo "$version" | awk '{ split($2, v, "."); exit !(v[1] > 1 || v[2] >= 85) }'
}
# As in machine.sh, which installs one for root.
new_enough cargo || PATH=/usr/bin:$PATH
if [ "$(id -u)" != 0 ] || [ "$(uname -m)" != x86_64 ] || ! new_enough cargo; then
  echo 'the tests of the guest agent are left out: they need root, x86-64 and cargo, as virtual machines do'
  exit 0
fi

cache=${XDG_CACHE_HOME:-$HOME/.cache}/warren/guest-agent
copy=$cache/tests/source
mkdir -p "$copy"
# Two clones would change the copy under each other's tests.
if command -v flock >/dev/null 2>&1; then
  exec 9>"$cache/tests/lock"
  flock 9
fi

sources() { (cd "$1" && find . -path ./target -prune -o -type f -print | LC_ALL=C sort); }
sources guest-agent | while read -r file; do
  cmp -s "guest-agent/$file" "$copy/$file" && continue
  mkdir -p "$copy/$(dirname "$file")"
  cp "guest-agent/$file" "$copy/$file"
done
sources "$copy" | while read -r file; do
  [ -e "guest-agent/$file" ] || rm "$copy/$file"
done

cd "$copy"
export CARGO_TARGET_DIR="$cache/tests/target" CARGO_INCREMENTAL=0
log=$cache/tests/log
if ! cargo test --locked -j2 >"$log" 2>&1; then
  grep -v ' \.\.\. ok$' "$log" | tail -60 >&2
  exit 1
fi
