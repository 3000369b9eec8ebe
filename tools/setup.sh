#!/bin/sh
# Makes a fresh clone ready: run by npm before start, test, check, bench and doctor. Does nothing when nothing is
# missing. Needs only a POSIX shell and npm; the Node that runs Warren comes from npm as well.
set -eu
cd "$(dirname "$0")/.."

quiet=no
[ "${1-}" = --quiet ] && quiet=yes

say() { [ "$quiet" = yes ] || printf '%s\n' "$*"; }
die() {
  printf 'set-up: %s\n' "$1" >&2
  printf '        %s\n' "$2" >&2
  exit 1
}

# --- npm packages ---------------------------------------------------------------------------------------------------

stamp=node_modules/.warren-installed
wanted=$(cksum package-lock.json)
if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$wanted" ] || [ ! -x node_modules/.bin/node ]; then
  case "$(uname -s) $(uname -m)" in
    'Linux x86_64' | 'Linux aarch64') ;;
    *) die "Warren runs on Linux on x86-64 or arm64, this is $(uname -s) $(uname -m)" 'Use such a machine.' ;;
  esac
  started=$(date +%s)
  log=$(mktemp)
  trap 'rm -f "$log"' EXIT
  say 'Installing npm packages (the first time about 250 MB) …'
  # Several starts of one clone at once would trip over each other's half-made node_modules.
  if command -v flock >/dev/null 2>&1; then
    exec 9>.setup.lock
    flock 9
  fi
  if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$wanted" ] || [ ! -x node_modules/.bin/node ]; then
    # No install scripts: everything we use comes ready in its package. The engine warnings are about the Node that
    # runs npm, not the one that runs Warren.
    if ! npm ci --ignore-scripts --no-audit --no-fund --loglevel=error >"$log" 2>&1; then
      cat "$log" >&2
      die 'npm ci failed, see above.' 'Check the network and the disk space, then run the same command again.'
    fi
    printf '%s' "$wanted" >"$stamp"
  fi
  say "Installed npm packages in $(($(date +%s) - started)) s."
fi
