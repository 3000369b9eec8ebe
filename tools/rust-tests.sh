#!/bin/sh
# rust-tests.sh CRATE: runs the tests of a crate with cargo, on a copy of its sources in the cache. Only changed files are
# written to the copy: cargo decides by path and modification time what to rebuild, so every fresh clone would otherwise
# build everything again and leave half a gigabyte behind.
set -eu
cd "$(dirname "$0")/.."
crate=$1

. tools/rust-programs.sh
# If the first cargo on the PATH is too old or broken, use Debian's, which machine.sh installs.
new_enough cargo || PATH=/usr/bin:$PATH
# The runner of the tests counts this exit status as a skip, which fails CI.
skipped=77
if [ "$(id -u)" != 0 ] || [ "$(uname -m)" != x86_64 ]; then
  echo "$crate: skipped, because its tests need root and x86-64"
  exit "$skipped"
fi
if ! new_enough cargo; then
  echo "$crate: there is no cargo of version 1.85 or newer; sh tools/machine.sh installs one" >&2
  exit 1
fi

cache=${XDG_CACHE_HOME:-$HOME/.cache}/warren/$crate
copy=$cache/tests/source
mkdir -p "$copy"
# One test run at a time: another clone would change the copy while its tests run.
if command -v flock >/dev/null 2>&1; then
  exec 9>"$cache/tests/lock"
  flock 9
fi

sources() { (cd "$1" && find . -path ./target -prune -o -type f -print | LC_ALL=C sort); }
sources "$crate" | while read -r file; do
  cmp -s "$crate/$file" "$copy/$file" && continue
  mkdir -p "$copy/$(dirname "$file")"
  cp "$crate/$file" "$copy/$file"
done
sources "$copy" | while read -r file; do
  [ -e "$crate/$file" ] || rm "$copy/$file"
done

cd "$copy"
export CARGO_TARGET_DIR="$cache/tests/target" CARGO_INCREMENTAL=0
log=$cache/tests/log
if ! cargo test --locked -j2 >"$log" 2>&1; then
  grep -v ' \.\.\. ok$' "$log" | tail -60 >&2
  exit 1
fi
