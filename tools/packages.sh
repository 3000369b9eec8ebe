# Sourced by machine.sh, test-tools.sh and bench-tools.sh: finds out which Debian packages are missing and installs them. A script that
# sources this has set $quiet. Called with --packages, it prints all packages that it would install on an empty machine,
# each with the program that it is wanted for: `npm test` hides every other program (tools/test-run/search-path.ts).

print() { [ "$quiet" = yes ] || printf '%s\n' "$*"; }
die() {
  printf 'set-up: %s\n' "$1" >&2
  printf '        %s\n' "$2" >&2
  exit 1
}
retry='then run the same command again.'
seconds_since() { echo $(($(date +%s) - $1)); }

have() { command -v "$1" >/dev/null 2>&1; }
have_file() { for file in "$@"; do [ -e "$file" ] && return 0; done; return 1; }

# Usage: want PACKAGE CHECK ARGUMENTS… The package is missing when the check fails.
packages=
want() {
  package=$1
  shift
  if [ "${list_only-}" = yes ]; then
    shift
    echo "$package" "$@"
  elif ! "$@"; then
    packages="$packages $package"
  fi
}

# Usage: run_apt LOG ARGUMENTS… Another apt-get on the machine, such as one for automatic updates, is waited for.
run_apt() {
  apt_log=$1
  shift
  waited=0
  until apt-get "$@" >"$apt_log" 2>&1; do
    grep -q 'Could not get lock' "$apt_log" && [ "$waited" -lt 600 ] || return 1
    [ "$waited" -gt 0 ] || print 'Waiting for another apt-get to finish …'
    sleep 5
    waited=$((waited + 5))
  done
}

install_packages() {
  [ "${list_only-}" != yes ] || exit 0
  [ -n "$packages" ] || return 0
  have apt-get || die "these Debian packages are missing:$packages" "Install the equivalent packages of your system, $retry"
  started=$(date +%s)
  print "Installing Debian packages:$packages …"
  log=$(mktemp)
  export DEBIAN_FRONTEND=noninteractive
  if ! run_apt "$log" update; then
    tail -5 "$log" >&2
    die 'apt-get update failed; see the output above.' "Fix the cause, $retry"
  fi
  case "$packages" in
    *' cargo'*)
      if apt-cache show cargo-web >/dev/null 2>&1; then packages=$(echo "$packages" | sed 's/ cargo/ cargo-web/'); fi ;;
  esac
  # shellcheck disable=SC2086  # a list of names
  if ! run_apt "$log" install -y --no-install-recommends $packages; then
    tail -15 "$log" >&2
    die "apt-get failed to install$packages; see the output above." "Fix the cause, $retry"
  fi
  rm -f "$log"
  print "Installed Debian packages in $(seconds_since "$started") s."
}
