#!/bin/sh
# Installs the S3 server of `warren disks demo`. It is one of those that the tests use.
set -eu
cd "$(dirname "$0")/.."

quiet=no
. tools/packages.sh
. tools/s3-servers.sh

can_make_venv() { python3 -c 'import ensurepip, venv' 2>/dev/null; }
can_make_venv || die 'Python 3 with venv is missing.' "Install it (Debian: apt-get install python3-venv), $retry"
tools=${XDG_CACHE_HOME:-$HOME/.cache}/warren/test-tools/bin
install_server seaweedfs "$SEAWEEDFS" download_seaweedfs
