#!/bin/sh
# Installs what only the tests need. Run by `npm test` as root; without root the tests that need these programs are
# skipped, and `npm test` lists them.
set -eu
cd "$(dirname "$0")/.."

quiet=no
[ "${1-}" != --packages ] || list_only=yes
. tools/packages.sh
if [ "$(id -u)" != 0 ] && [ "${list_only-}" != yes ]; then exit 0; fi

# Programs elsewhere, in a home directory for example, do not count: the tests do not see them.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

can_make_venv() { python3 -c 'import ensurepip, venv' 2>/dev/null; }

want git have git
want curl have curl
want ca-certificates have_file /etc/ssl/certs/ca-certificates.crt
want openssl have openssl
want openssh-client have ssh
want procps have ps
want cpio have cpio
want skopeo have skopeo
want umoci have umoci
want python3 have python3
want python3-venv can_make_venv
want chromium have chromium
install_packages

# A registry for the tests of imports. Only the program is unpacked: installing the package would start a service.
registry=${XDG_CACHE_HOME:-$HOME/.cache}/warren/test-tools/bin/docker-registry
if [ ! -x "$registry" ] && have apt-get; then
  print 'Downloading the Debian package docker-registry …'
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  chmod 755 "$folder"
  # apt's user cannot write to a folder of root, which apt reports as a warning.
  if ! (cd "$folder" && { apt-get download docker-registry || { apt-get update && apt-get download docker-registry; }; } &&
    dpkg-deb --extract docker-registry_*.deb . && [ -x usr/bin/docker-registry ]) >"$folder/log" 2>&1; then
    tail -5 "$folder/log" >&2
    die 'failed to download the Debian package docker-registry; see the output above.' "Fix the cause, $retry"
  fi
  mkdir -p "$(dirname "$registry")"
  mv "$folder/usr/bin/docker-registry" "$registry"
fi
