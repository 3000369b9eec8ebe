#!/bin/sh
# Builds what only the bench needs. Run by `npm run bench` as root; without root there are no rows that need it.
set -eu
cd "$(dirname "$0")/.."

quiet=yes
. tools/packages.sh
. tools/rust-programs.sh
if [ "$(id -u)" != 0 ] || [ "$(uname -m)" != x86_64 ]; then exit 0; fi

build native-vmm native-vmm 'stand-in for QEMU'
build native-vmm spawn 'baseline of exec' --example spawn
