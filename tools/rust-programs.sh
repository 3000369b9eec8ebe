# Builds the programs that are written in Rust. Sourced by other scripts, after packages.sh.

# The cargo of Debian 12 is too old; its package cargo-web has a newer one.
new_enough() {
  version=$("$1" --version 2>/dev/null) || return 1
  echo "$version" | awk '{ split($2, v, "."); exit !(v[1] > 1 || v[2] >= 85) }'
}
have_new() { new_enough "$1" || new_enough "/usr/bin/$1"; }

# Usage: build CRATE PROGRAM NAME [--example PROGRAM]. The program is taken from the cache if the same sources have been
# built before.
build() {
  crate=$1
  name=$3
  program=$crate/target/warren/$2
  cache=${XDG_CACHE_HOME:-$HOME/.cache}/warren/$crate
  wanted=$2-$(find "$crate" -path "$crate/target" -prune -o -type f -print | LC_ALL=C sort | xargs sha256sum | sha256sum | cut -c1-32)
  if [ -x "$program" ] && [ "$(cat "$program.stamp" 2>/dev/null)" = "$wanted" ]; then return; fi
  mkdir -p "$(dirname "$program")" "$cache"
  if [ ! -x "$cache/$wanted" ]; then
    started=$(date +%s)
    print "Building the $name …"
    log=$(mktemp)
    # If the first cargo on the PATH is too old or broken, use Debian's.
    new_enough cargo || PATH=/usr/bin:$PATH
    built=release/${4:+examples/}$2
    shift 3
    # All clones build in one folder, one at a time. Cargo compares modification times, and those of a clone can be older
    # than what another clone has built, so it would take the other's program for this one's.
    if ! (
      if command -v flock >/dev/null 2>&1; then flock 9; fi
      cd "$crate"
      find . -path ./target -prune -o -type f -exec touch {} +
      CARGO_TARGET_DIR="$cache/target" CARGO_BUILD_TARGET="$(uname -m)-unknown-linux-gnu" cargo build --release --locked -j2 "$@" >"$log" 2>&1 || exit 1
      cp "$cache"/target/*/"$built" "$cache/$wanted.new.$$"
    ) 9>"$cache/lock"; then
      tail -20 "$log" >&2
      die "failed to build the $name; see the output above." "Fix the cause, $retry"
    fi
    mv "$cache/$wanted.new.$$" "$cache/$wanted"
    rm -f "$log"
    print "Built the $name in $(seconds_since "$started") s."
  fi
  cp "$cache/$wanted" "$program.new.$$"
  mv "$program.new.$$" "$program"
  printf '%s' "$wanted" >"$program.stamp"
}
