#!/bin/sh
# Installs what only the tests need. Run by `npm test` as root; without root the tests that need these programs are
# skipped, and `npm test` lists them. Those that need an S3 server fail.
set -eu
cd "$(dirname "$0")/.."

quiet=no
[ "${1-}" != --packages ] || list_only=yes
. tools/packages.sh
. tools/rust-programs.sh
. tools/s3-servers.sh
if [ "$(id -u)" != 0 ] && [ "${list_only-}" != yes ]; then exit 0; fi

# Programs elsewhere, in a home directory for example, do not count: the tests do not see them.
full_path=$PATH
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

can_make_venv() { python3 -c 'import ensurepip, venv' 2>/dev/null; }

want git have git
want curl have curl
want ca-certificates have_file /etc/ssl/certs/ca-certificates.crt
want openssl have openssl
want openssh-client have ssh
want procps have ps
want strace have strace
want cpio have cpio
want skopeo have skopeo
want umoci have umoci
want python3 have python3
want python3-venv can_make_venv
want chromium have chromium
install_packages

# Programs of packages that would start a service if they were installed. Only the program is unpacked.
# Usage: unpack PACKAGE [PROGRAM]. The program, by default of the same name, gets the name of the package.
tools=${XDG_CACHE_HOME:-$HOME/.cache}/warren/test-tools/bin
unpack() {
  if [ -x "$tools/$1" ] || ! have apt-get; then return 0; fi
  print "Downloading the Debian package $1 …"
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  chmod 755 "$folder"
  # apt's user cannot write to a folder of root, which apt reports as a warning.
  if ! (cd "$folder" && { apt-get download "$1" || { apt-get update && apt-get download "$1"; }; } &&
    dpkg-deb --extract "$1"_*.deb . && mv "$(find . -type f -path "*/bin/${2-$1}")" program) >"$folder/log" 2>&1; then
    tail -5 "$folder/log" >&2
    die "failed to download the Debian package $1; see the output above." "Fix the cause, $retry"
  fi
  mkdir -p "$tools"
  mv "$folder/program" "$tools/$1"
  rm -rf "$folder"
}

# A registry for the tests of imports, Prometheus for the queries of the dashboard, and a root file system without Debian.
unpack docker-registry
unpack prometheus
unpack busybox-static busybox
install_s3_servers

PATH=$full_path
build jail attack 'attacks that the tests of the jail try' --example attack
