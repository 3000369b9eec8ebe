#!/bin/sh
# Runs the guest agent's tests with cargo, on a copy of the sources in the cache. Only changed files are written to the
# copy: cargo decides by path and modification time what to rebuild, so every fresh clone would otherwise build
# everything again and leave half a gigabyte behind.
set -eu
cd "$(dirname "$0")/.."

new_enough() {
  version=$("$1" --version 2>/dev/null) || return 1
  echo "$version" | awk '{ split($2, v, "."); exit !(v[1] > 1 || v[2] >= 85) }'
}
# If the first cargo on the PATH is too old or broken, use Debian's, which machine.sh installs.
new_enough cargo || PATH=/usr/bin:$PATH
# The runner of the tests counts this exit status as a skip, which fails CI.
skipped=77
if [ "$(id -u)" != 0 ] || [ "$(uname -m)" != x86_64 ]; then
  echo 'guest agent: skipped, because its tests need root and x86-64'
  exit "$skipped"
fi
if ! new_enough cargo; then
  echo 'guest agent: there is no cargo of version 1.85 or newer; sh tools/machine.sh installs one' >&2
  exit 1
fi

cache=${XDG_CACHE_HOME:-$HOME/.cache}/warren/guest-agent
copy=$cache/tests/source
mkdir -p "$copy"
# One test run at a time: another clone would change the copy while its tests run.
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
